"""DCP's planning at many ranks, on one process: what the coordinator does with the plans of all, measured.

Rank 0 receives every rank's plan (as a pickle), makes the global plan of them, sends each rank its part, receives what
was written, and writes `.metadata` (torch.distributed.checkpoint.state_dict_saver). Each of these is done here by DCP's
own planner on the plans of a whole world. What the network takes is not in it, but the bytes are.
"""

from __future__ import annotations

import gc
import inspect
import math
import pickle
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan

from .entries import Entry, local_plan
from .mesh import Mesh

WORLDS = (64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
ITEMS_LIMIT = 150_000  # write items of a world that is still measured: some 700 MB of memory, and ten seconds
_FEW_ITEMS = 10_000  # take less than a second

T = TypeVar("T")


@dataclass(frozen=True)
class Planning:
    """Of one world. `measured` is false where the figures follow from smaller worlds.

    * `planned`, `written`: write items of all ranks, before and after replicas are left out (de-duplication).
    * `received`: bytes of plans that the coordinator gets.
    * `receive_seconds`, `plan_seconds`, `finish_seconds`: to unpickle them and pickle the answers; to make the global
      plan; to collect what was written and pickle the metadata.
    * `metadata`: bytes of `.metadata`; `read_seconds`: to read it, which each rank does in a load.
    * `cached_received`, `cached_seconds`: of a second save with `enable_plan_caching`; None where torch has none.
    """

    world: int
    measured: bool
    planned: int
    written: int
    received: int
    receive_seconds: float
    plan_seconds: float
    finish_seconds: float
    metadata: int
    read_seconds: float
    cached_received: int | None
    cached_seconds: float | None

    @property
    def seconds(self) -> float:
        """The coordinator's time, while all other ranks wait."""
        return self.receive_seconds + self.plan_seconds + self.finish_seconds


class _Cached(DefaultSavePlanner):
    """Its caches are found by the name of the class, and so apart from those of any save of this process."""


def can_cache() -> bool:
    """Whether this torch caches plans (2.7 and newer)."""
    return "enable_plan_caching" in inspect.signature(DefaultSavePlanner.__init__).parameters


def simulate(state: Sequence[Entry], mesh: Mesh) -> Planning:
    """Plan the save of a world as its coordinator does."""
    plans = _local_plans(state, mesh)
    sample = [pickle.dumps(plan) for plan in plans[:16]]
    gc.collect()
    gc.disable()  # a collection walks all plans, and falls where it will
    try:
        _, unpickling = _timed(lambda: [pickle.loads(data) for data in sample])  # noqa: S301  # of our own making
        planner = DefaultSavePlanner()
        (sent, metadata), planning = _timed(lambda: planner.create_global_plan(plans))
        _, pickling = _timed(lambda: [pickle.dumps(plan) for plan in sent[:16]])
        data, finishing = _timed(lambda: _finish(metadata, sent))
        _, reading = _timed(lambda: pickle.loads(data))  # noqa: S301
        cached = _cached(plans) if can_cache() else None
    finally:
        gc.enable()
    shares = mesh.world / len(sample)
    return Planning(
        world=mesh.world,
        measured=True,
        planned=sum(len(plan.items) for plan in plans),
        written=sum(len(plan.items) for plan in sent),
        received=round(sum(map(len, sample)) * shares),
        receive_seconds=(unpickling + pickling) * shares,
        plan_seconds=planning,
        finish_seconds=finishing,
        metadata=len(data),
        read_seconds=reading,
        cached_received=cached[0] if cached else None,
        cached_seconds=cached[1] + finishing if cached else None,
    )


def planning_at(state: Sequence[Entry], mesh: Mesh, grows: str, worlds: Sequence[int] = WORLDS) -> list[Planning]:
    """The planning of each world that the mesh can grow to, measured up to `ITEMS_LIMIT` items, extrapolated beyond.

    A large model has fewer than two such worlds, by which to extrapolate: then smaller ones are measured for them.
    """
    rest = mesh.world // int(getattr(mesh, grows))
    doubled = [rest * 2**power for power in range(worlds[-1].bit_length())]
    wanted = [world for world in worlds if world % rest == 0] or [
        world for world in doubled if worlds[0] <= world <= worlds[-1]
    ]
    possible = sorted({*wanted, *(world for world in doubled if world < worlds[0])} or {rest})
    two = possible[:2][-1]  # which it takes to extrapolate
    affordable = [world for world in possible if world <= max(two, ITEMS_LIMIT // len(state))]
    needed = {*affordable[-2:], *wanted} & {*affordable}
    measured = {
        world: simulate(state, replace(mesh, **{grows: world // rest})) for world in affordable if world in needed
    }
    return [measured.get(world) or _extrapolated([*measured.values()], world) for world in wanted or [rest]]


def metadata_bytes(state: Sequence[Entry], mesh: Mesh) -> int:
    """Bytes of `.metadata`: of the world itself, or from two that are small. What replicas hold is there once."""

    def of(shards: int) -> int:
        plans = _local_plans(state, replace(mesh, dp_replicate=1, dp_shard=shards))
        sent, metadata = DefaultSavePlanner().create_global_plan(plans)
        return len(_finish(metadata, sent))

    if mesh.dp_shard <= 4 or mesh.dp_shard * mesh.tp * len(state) <= _FEW_ITEMS:
        return of(mesh.dp_shard)
    first, second = of(2), of(4)
    return first + (second - first) * (mesh.dp_shard - 2) // 2


def _local_plans(state: Sequence[Entry], mesh: Mesh) -> list[SavePlan]:
    return [local_plan(state, mesh, rank) for rank in range(mesh.world)]


def _extrapolated(found: Sequence[Planning], world: int) -> Planning:
    """Bytes and items grow by the line through the two largest worlds measured, times by the power that they show."""
    first, second = found[-2:]
    ratio = world / second.world
    growth = math.log(second.world / first.world)

    def line(name: str) -> Any:
        low, high = getattr(first, name), getattr(second, name)
        if high is None:
            return None
        return round(high + (high - low) * (world - second.world) / (second.world - first.world))

    def power(name: str) -> Any:
        low, high = getattr(first, name), getattr(second, name)
        if high is None:
            return None
        exponent = math.log(high / low) / growth if low > 0 and high > 0 else 1.0
        return high * ratio ** min(2.0, max(0.0, exponent))  # no step of it is of a higher order

    sizes = ("planned", "written", "received", "metadata", "cached_received")
    times = ("receive_seconds", "plan_seconds", "finish_seconds", "read_seconds", "cached_seconds")
    figures = {name: line(name) for name in sizes} | {name: power(name) for name in times}
    return Planning(world=world, measured=False, **figures)


def _finish(metadata: Metadata, sent: Sequence[SavePlan]) -> bytes:
    """The metadata with the place of each chunk, pickled, as `FileSystemWriter.finish` does it."""
    metadata.storage_data = {
        item.index: _StorageInfo(f"__{rank}_0.distcp", 0, 1) for rank, plan in enumerate(sent) for item in plan.items
    }
    return pickle.dumps(metadata)


def _cached(plans: list[SavePlan]) -> tuple[int, float]:
    """Bytes that the coordinator gets, and its seconds, in the second of two equal saves with plan caching."""
    planner = _Cached(enable_plan_caching=True)
    try:
        planner.create_global_plan(plans)
        unchanged = [SavePlan([], usable=False) for _ in plans]
        _, seconds = _timed(lambda: planner.create_global_plan(unchanged))
    finally:
        for cache in ("_cached_all_plans", "_cached_global_plan", "_cached_metadata"):  # torch 2.7 has no third
            getattr(planner, cache, {}).pop(planner._cached_plans_key, None)
    return len(pickle.dumps(unchanged[0])) * len(plans), seconds


def _timed(call: Callable[[], T]) -> tuple[T, float]:
    started = time.thread_time()  # of one core, whatever else this machine does
    result = call()
    return result, time.thread_time() - started
