"""Hooks on data: samplers, loaders, and what the first batch of each pass is."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler
from torch.utils.data import dataloader as loaders

from ..events import BatchesDrawn, LoaderBuilt, Ref, SamplerBuilt
from .digest import digest
from .frames import program_frame
from .identity import Objects
from .observer import Call, Handler, Observer


def install(observer: Observer) -> None:
    """Hook what this module is about."""
    begun = Objects()  # iterators that have not given a batch yet: their loader

    def sampler_built(call: Call) -> Handler:
        yield
        sampler = call.args[0]
        frame = program_frame(building=sampler)
        observer.emit(
            SamplerBuilt,
            frame,
            sampler=observer.ref(sampler, frame, type(sampler).__name__),
            everyone=sampler.num_replicas == dist.get_world_size() if dist.is_initialized() else None,
            shuffles=bool(sampler.shuffle),
        )

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
        )

    def begins(call: Call) -> Handler:
        loader = observer.ref(call.args[0], call.frame, "loader")
        batches = yield
        begun.set(batches, loader)

    def drawn(call: Call) -> Handler:
        batches = call.args[0]
        loader = begun.get(batches)
        if not isinstance(loader, Ref):
            yield
            return
        batch = yield
        begun.set(batches, None)
        order = observer.emit(BatchesDrawn, call.frame, loader=loader)
        if (crc := _digest(batch)) is not None:
            observer.recorder.write({"note": "batch", "order": order, "digest": crc})

    observer.wrap([DistributedSampler], "__init__", sampler_built, by_program=False)
    observer.wrap([DataLoader], "__init__", loader_built, by_program=False)
    observer.wrap([DataLoader], "__iter__", begins)
    observer.wrap([loaders._BaseDataLoaderIter], "__next__", drawn)


def _digest(batch: Any) -> int | None:
    """The digest of a batch; None where it has no two samples that differ, as all batches of its kind may be alike."""
    tensors = list(_tensors(batch))
    if not any(t.dim() > 0 and len(t) > 1 and bool((t != t[:1]).any()) for t in tensors):
        return None
    return zlib.crc32(repr([digest(t) for t in tensors]).encode())


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (dict, list, tuple)):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _tensors(part)
