"""Puts the hooks in place, before the script is run."""

from __future__ import annotations

from ..launch.places import Settings
from . import checkpoints, data, dropless, groups, loop, phases, reductions, sharding, states
from .entries import Reader
from .measure import Meter
from .modules import Modules
from .observer import Observer


def install(settings: Settings, rank: int) -> Observer:
    """Start observing this process as one rank of a job."""
    observer = Observer(settings, rank)
    modules = Modules(observer)
    taken = states.Taken()
    reader = Reader(observer, modules, taken)
    futures = checkpoints.Futures(observer)
    meter = Meter(observer, modules, futures.await_all)
    forwards = sharding.Forwards(observer, modules, meter)
    reduced = reductions.Reductions(observer)
    groups.install(observer, reduced)
    reductions.install(observer)
    passes = data.Passes()
    data.install(observer, passes)
    sharding.install(observer, modules, forwards)
    loop.install(observer, modules, forwards, meter, reader, reduced, passes)
    states.install(observer, modules, taken, forwards.beginnings)
    checkpoints.install(observer, reader, futures, passes)
    if settings.probe.fault is not None:
        phases.install_in_rank(observer.faults, settings, rank)
    if settings.probe.without_dropout:
        dropless.install()
    return observer
