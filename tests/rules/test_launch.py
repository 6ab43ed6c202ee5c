"""FS1 over traces written by hand."""

from __future__ import annotations

import pytest
from pytorch_fsdp2_dcp.validate.events import (
    AcceleratorUsed,
    CollectiveCalled,
    DeviceSet,
    Escaped,
    ForwardEntered,
    GradientsClipped,
    GroupCreated,
    GroupInitialised,
    Loaded,
    MeshCreated,
    ModuleBuilt,
    Saved,
    Sharded,
    StateApplied,
    StateTaken,
    TorchSaved,
    Via,
)

from .traces import GROUP, MODEL, OTHER, STATE, Step, does, found, saves_async

NCCL = does(GroupInitialised, backend="cpu:gloo,cuda:nccl")
BARRIER = does(CollectiveCalled, op="barrier")
RANK_0 = "rank == 0"


def test_device_must_be_set_before_the_first_collective() -> None:
    assert found(NCCL, BARRIER) == [("FS101", 1)]
    assert found(NCCL, BARRIER, does(DeviceSet)) == [("FS101", 1)]
    assert found(NCCL, does(AcceleratorUsed), does(Sharded, module=MODEL)) == [("FS101", 1)]
    assert found(NCCL, does(AcceleratorUsed), does(MeshCreated, mesh=OTHER, device_type="cuda")) == [("FS101", 1)]
    assert found(NCCL, does(MeshCreated, mesh=OTHER, device_type="cpu"), BARRIER) == [("FS101", 1)]


@pytest.mark.parametrize(
    "steps",
    [
        (does(DeviceSet), NCCL, BARRIER),
        (NCCL, does(DeviceSet), BARRIER),
        (does(GroupInitialised, backend="nccl", device_bound=True), BARRIER),
        (does(GroupInitialised, backend="nccl", world_size=1), BARRIER),
        (does(GroupInitialised, backend="gloo"), BARRIER),
        (does(GroupInitialised, backend=None), BARRIER),
        (NCCL, does(MeshCreated, mesh=OTHER, device_type="cuda"), BARRIER),
        (NCCL, does(Sharded, module=MODEL), BARRIER),
        (NCCL,),
    ],
)
def test_device_is_set_bound_or_set_by_the_mesh(steps: tuple[Step, ...]) -> None:
    assert found(*steps) == []


def test_a_probe_says_nothing_of_devices() -> None:
    assert found(NCCL, BARRIER, origin="probe") == []


@pytest.mark.parametrize(
    "step",
    [
        does(MeshCreated, only=RANK_0, mesh=OTHER),
        does(GroupCreated, only=RANK_0, group=GROUP),
        does(CollectiveCalled, only=RANK_0, op="full_tensor"),
        does(ForwardEntered, only=RANK_0, module=MODEL, sharded=True),
        does(GradientsClipped, only=RANK_0, modules=(MODEL,), sharded=True),
        does(StateTaken, only=RANK_0, of=(MODEL,), state=STATE, via=Via.HELPER, full=True),
        does(StateApplied, only=RANK_0, to=(MODEL,), via=Via.HELPER, full=True),
        does(Saved, only=RANK_0),
        does(Loaded, only=RANK_0),
    ],
)
@pytest.mark.parametrize("origin", ["reader", "probe"])
def test_every_kind_of_collective_is_for_all_ranks(step: Step, origin: str) -> None:
    assert found(step, origin=origin) == [("FS102", 1)]


def test_a_group_that_holds_all_ranks_excuses_nobody() -> None:
    guarded = does(Saved, only=RANK_0, group=GROUP)
    assert found(does(GroupCreated, group=GROUP, everyone=True), guarded) == [("FS102", 2)]
    assert found(does(GroupCreated, group=GROUP), guarded) == []
    assert found(does(GroupCreated, group=OTHER, everyone=True), guarded) == []


@pytest.mark.parametrize(
    "step",
    [
        does(Saved),
        does(Saved, only=RANK_0, group=GROUP),
        does(Saved, only=RANK_0, alone=True),
        does(CollectiveCalled, only=RANK_0, op="all_reduce", group=GROUP),
        does(ForwardEntered, only=RANK_0, module=MODEL),
        does(GradientsClipped, only=RANK_0, modules=(MODEL,)),
        does(StateTaken, only=RANK_0, of=(MODEL,), state=STATE, via=Via.METHOD),
        does(TorchSaved, only=RANK_0),
    ],
)
def test_what_one_rank_may_do_alone(step: Step) -> None:
    assert found(step) == []


def test_an_asynchronous_save_is_a_collective_too() -> None:
    assert ("FS102", 1) in found(saves_async(only=RANK_0))


GATHERED = does(StateTaken, only=RANK_0, of=(MODEL,), state=STATE, via=Via.HELPER, full=True)


@pytest.mark.parametrize("step", [does(ModuleBuilt, module=MODEL, cls="Net"), does(Escaped, of=OTHER)])
def test_one_rank_may_gather_what_is_sharded_only_later(step: Step) -> None:
    assert found(step, GATHERED, does(Sharded, module=MODEL)) == []


def test_one_rank_may_gather_what_was_built_and_never_sharded() -> None:
    built = does(ModuleBuilt, module=MODEL, cls="Net")
    assert found(built, GATHERED) == []
    assert found(built, does(Escaped, of=MODEL), GATHERED) == [("FS102", 3)]
    assert found(built, does(Sharded, module=MODEL), GATHERED) == [("FS102", 3)]
