"""Hooks on data: samplers, loaders, and what the first batch of each pass is."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
)
from torch.utils.data import dataloader as loaders

from ..events import BatchesDrawn, BatchesPassedOver, LoaderBuilt, Ref, SamplerBuilt
from .digest import digest, tensors
from .frames import program_frame
from .identity import Objects
from .observer import Call, Handler, Observer

_ORDINARY = (RandomSampler, SequentialSampler, DistributedSampler)


@dataclass
class _Pass:
    """One pass through a loader."""

    loader: Ref
    batches: int | None  # how many it has, None where unknown
    drawn: int = 0
    used: bool = False  # the batch drawn last was trained on
    passed_over: bool = False


class Passes:
    """The passes through loaders that have begun, until their iterators are gone."""

    def __init__(self) -> None:
        self.of = Objects()  # by the iterator

    def underway(self) -> tuple[Ref, ...]:
        """The loaders whose passes have begun and have not come to their end."""
        found = [self.of.get(batches) for batches in self.of]
        return tuple(p.loader for p in found if p is not None and p.drawn and p.drawn != p.batches)

    def trained(self) -> None:
        """The program has called backward."""
        for batches in self.of:
            self.of.get(batches).used = True


def install(observer: Observer, passes: Passes) -> None:
    """Hook what this module is about."""

    def sampler_built(call: Call) -> Handler:
        yield
        sampler = call.args[0]
        frame = program_frame(building=sampler)
        order = observer.emit(
            SamplerBuilt,
            frame,
            sampler=observer.ref(sampler, frame, type(sampler).__name__),
            everyone=sampler.num_replicas == dist.get_world_size() if dist.is_initialized() else None,
            shuffles=bool(sampler.shuffle),
        )
        if isinstance(sampler.seed, int):
            observer.recorder.write({"note": "seed", "order": order, "seed": sampler.seed})

    def loader_built(call: Call) -> Handler:
        yield
        loader = call.args[0]
        frame = program_frame(building=loader)
        sampler = loader.sampler
        observer.emit(
            LoaderBuilt,
            frame,
            loader=observer.ref(loader, frame, type(loader).__name__),
            sampler=observer.ref(sampler, frame, "sampler") if isinstance(sampler, DistributedSampler) else None,
            rewinds=_rewinds(loader) or None,
        )

    def begins(call: Call) -> Handler:
        loader = observer.ref(call.args[0], call.frame, "loader")
        batches = yield
        passes.of.set(batches, _Pass(loader, _length(call.args[0])))

    def drawn(call: Call) -> Handler:
        under = passes.of.get(call.args[0])
        if under is None:
            yield
            return
        try:
            batch = yield
        except GeneratorExit:
            under.batches = under.drawn  # there are no more
            raise
        under.drawn += 1
        if under.drawn == 1:
            order = observer.emit(BatchesDrawn, call.frame, loader=under.loader)
            if under.batches is not None:
                observer.recorder.write({"note": "length", "order": order, "batches": under.batches})
            if (crc := _digest(batch)) is not None:
                observer.recorder.write({"note": "batch", "order": order, "digest": crc})
        elif not under.used and not under.passed_over and torch.is_grad_enabled():
            under.passed_over = True
            observer.emit(BatchesPassedOver, call.frame, loader=under.loader)
        under.used = False

    observer.wrap([DistributedSampler], "__init__", sampler_built, by_program=False)
    observer.wrap([DataLoader], "__init__", loader_built, by_program=False)
    observer.wrap([DataLoader], "__iter__", begins)
    observer.wrap([loaders._BaseDataLoaderIter], "__next__", drawn)


def _length(loader: DataLoader[Any]) -> int | None:
    try:
        return len(loader)
    except TypeError:  # of a stream
        return None


def _rewinds(loader: DataLoader[Any]) -> bool:
    """Whether nothing can make it begin elsewhere than at the first sample."""
    ordinary = type(loader.sampler) in _ORDINARY and type(loader.batch_sampler) in (BatchSampler, type(None))
    dataset = loader.dataset
    return ordinary and not isinstance(dataset, (IterableDataset, Subset)) and not hasattr(dataset, "state_dict")


def _digest(batch: Any) -> int | None:
    """The digest of a batch; None where it has no two samples that differ, as all batches of its kind may be alike."""
    found = list(tensors(batch))
    if not any(t.dim() > 0 and len(t) > 1 and bool((t != t[:1]).any()) for t in found):
        return None
    return zlib.crc32(repr([digest(t) for t in found]).encode())
