"""FS1 over traces written by hand."""

from __future__ import annotations

import pytest
from pytorch_fsdp2_dcp.validate.events import (
    AcceleratorUsed,
    Awaited,
    Choice,
    CollectiveCalled,
    DeviceSet,
    Escaped,
    Exited,
    ForwardEntered,
    GradientsClipped,
    GroupCreated,
    GroupDestroyed,
    GroupInitialised,
    Loaded,
    MeshCreated,
    ModuleBuilt,
    Question,
    Ref,
    Saved,
    Sharded,
    StateApplied,
    StateTaken,
    TorchLoaded,
    TorchSaved,
    Via,
)

from .traces import FUTURE, GROUP, MODEL, OTHER, STATE, Step, does, found, saves_async

NCCL = does(GroupInitialised, backend="cpu:gloo,cuda:nccl")
REDUCED = does(CollectiveCalled, op="all_reduce")
OBJECTS = does(CollectiveCalled, op="all_gather_object")
BARRIER = does(CollectiveCalled, op="barrier")  # on the device that has the number of the rank
RANK_0 = "rank == 0"


def test_device_must_be_set_before_the_first_collective() -> None:
    assert found(NCCL, OBJECTS) == [("FS101", 1)]
    assert found(NCCL, OBJECTS, does(DeviceSet)) == [("FS101", 1)]
    assert found(does(AcceleratorUsed), NCCL, REDUCED) == [("FS101", 2)]
    assert found(NCCL, does(AcceleratorUsed), does(Sharded, module=MODEL)) == [("FS101", 1)]
    assert found(NCCL, does(AcceleratorUsed), does(MeshCreated, mesh=OTHER, device_type="cuda")) == [("FS101", 1)]
    assert found(NCCL, does(MeshCreated, mesh=OTHER, device_type="cpu"), OBJECTS) == [("FS101", 1)]


@pytest.mark.parametrize(
    "steps",
    [
        (does(DeviceSet), NCCL, OBJECTS),
        (NCCL, does(DeviceSet), OBJECTS),
        (does(GroupInitialised, backend="nccl", device_bound=True), OBJECTS),
        (does(GroupInitialised, backend="nccl", world_size=1), OBJECTS),
        (does(GroupInitialised, backend="gloo"), OBJECTS),
        (does(GroupInitialised, backend=None), OBJECTS),
        (NCCL, does(MeshCreated, mesh=OTHER, device_type="cuda"), OBJECTS),
        (NCCL, does(Sharded, module=MODEL), OBJECTS),
        (NCCL,),
        (NCCL, BARRIER),
        (NCCL, REDUCED),  # wherever its tensor is
    ],
)
def test_device_is_set_bound_or_set_by_the_mesh(steps: tuple[Step, ...]) -> None:
    assert found(*steps) == []


def test_a_probe_says_nothing_of_devices() -> None:
    assert found(NCCL, OBJECTS, origin="probe") == []


@pytest.mark.parametrize(
    "step",
    [
        does(MeshCreated, only=RANK_0, mesh=OTHER),
        does(GroupCreated, only=RANK_0, group=GROUP),
        does(CollectiveCalled, only=RANK_0, op="full_tensor"),
        does(ForwardEntered, only=RANK_0, module=MODEL, sharded=True),
        does(GradientsClipped, only=RANK_0, modules=(MODEL,), sharded=True),
        does(StateTaken, only=RANK_0, of=(MODEL,), state=STATE, via=Via.HELPER, full=True, offload=True),
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


GATHERED = does(StateTaken, only=RANK_0, of=(MODEL,), state=STATE, via=Via.HELPER, full=True, offload=True)


@pytest.mark.parametrize("step", [does(ModuleBuilt, module=MODEL, cls="Net"), does(Escaped, of=OTHER)])
def test_one_rank_may_gather_what_is_sharded_only_later(step: Step) -> None:
    assert found(step, GATHERED, does(Sharded, module=MODEL)) == []


def test_one_rank_may_gather_what_was_built_and_never_sharded() -> None:
    built = does(ModuleBuilt, module=MODEL, cls="Net")
    assert found(built, GATHERED) == []
    assert found(built, does(Escaped, of=MODEL), GATHERED) == [("FS102", 3)]
    assert found(built, does(Sharded, module=MODEL), GATHERED) == [("FS102", 3)]


# --- what each rank finds out for itself ---

SEES = Choice(7, True, Question("os.path.exists(path)", "files"))
LATE = Choice(7, True, Question("time.time() > end", "clock"))
OTHERWISE = Choice(7, False)
STARTED = does(GroupInitialised, backend="gloo")


@pytest.mark.parametrize(
    "step",
    [
        does(Loaded, branch=SEES),
        does(Saved, branch=SEES),
        does(CollectiveCalled, branch=LATE, op="barrier"),
        does(ForwardEntered, branch=LATE, module=MODEL, sharded=True),
    ],
)
def test_a_rank_comes_by_what_it_alone_sees(step: Step) -> None:
    assert found(STARTED, step, step) == [("FS103", 2)]
    assert found(step, origin="probe") == []


@pytest.mark.parametrize(
    "steps",
    [
        (does(Loaded, branch=SEES),),
        (does(GroupInitialised, backend="gloo", world_size=1), does(Loaded, branch=SEES)),
        (STARTED, does(Loaded, branch=Choice(7, True))),
        (STARTED, does(ForwardEntered, branch=SEES, module=MODEL, sharded=True)),
        (STARTED, does(Loaded, branch=SEES), does(Loaded, branch=OTHERWISE)),
        (STARTED, does(Loaded, branch=SEES), does(TorchLoaded, branch=OTHERWISE)),
    ],
)
def test_all_ranks_come_or_there_is_but_one(steps: tuple[Step, ...]) -> None:
    assert found(*steps) == []


@pytest.mark.parametrize("literal", [True, False])
@pytest.mark.parametrize("shape", [(2, 2), (1, 1), (None, 2), None])
def test_a_mesh_of_fixed_sizes(literal: bool, shape: tuple[int | None, ...] | None) -> None:
    made = does(MeshCreated, mesh=OTHER, device_type="cpu", shape=shape, literal=literal)
    assert found(made) == ([("FS209", 1)] if literal and shape == (2, 2) else [])
    assert found(does(GroupInitialised, backend="gloo", world_size=4), made) == []


# --- what NCCL cannot do ---

GPUS = does(GroupInitialised, backend="nccl", device_bound=True)
OFFLOADED = does(Sharded, module=MODEL, offload=True)
CLIPPED = does(GradientsClipped, modules=(MODEL,), sharded=True)


def saves_over(group: Ref | None) -> tuple[Step, Step]:
    return saves_async(group=group), does(Awaited, future=FUTURE)


def test_nccl_alone_neither_saves_nor_clips_on_the_cpu() -> None:
    assert found(GPUS, *saves_over(None)) == [("FS104", 1)]
    assert found(GPUS, OFFLOADED, CLIPPED) == [("FS104", 1)]
    assert found(GPUS, does(GroupCreated, group=GROUP, inherits=True), *saves_over(GROUP)) == [("FS104", 2)]
    assert found(does(GroupCreated, group=GROUP, backend="nccl"), *saves_over(GROUP)) == [("FS104", 1)]


@pytest.mark.parametrize(
    "steps",
    [
        (GPUS, does(GroupCreated, group=GROUP, backend="gloo"), *saves_over(GROUP)),
        (GPUS, *saves_over(GROUP)),
        (GPUS, does(Sharded, module=MODEL, offload=None), CLIPPED),
        (GPUS, OFFLOADED, does(GradientsClipped, modules=(OTHER,))),
        (does(GroupInitialised, backend="cpu:gloo,cuda:nccl", device_bound=True), *saves_over(None)),
        (does(GroupInitialised, backend=None), OFFLOADED, CLIPPED),
        (GPUS, does(GroupInitialised, backend="gloo", branch=Choice(1, True)), OFFLOADED, CLIPPED),
        (does(GroupInitialised, backend=None), does(GroupCreated, group=GROUP, inherits=True), *saves_over(GROUP)),
    ],
)
def test_another_backend_is_there_or_may_be(steps: tuple[Step, ...]) -> None:
    assert found(*steps) == []


def test_a_group_is_left_when_the_program_ends() -> None:
    end = does(Exited)
    assert found(NCCL, end) == [("FS105", 1)]
    for steps in ((NCCL, does(GroupDestroyed), end), (does(GroupDestroyed), NCCL, end), (end,)):
        assert found(*steps) == []
    assert found(NCCL, does(Exited, error="ValueError: x")) == []
    assert found(NCCL, does(Exited, code=-9)) == []
    assert found(NCCL, end, ended=False) == []
    assert found(NCCL) == []
