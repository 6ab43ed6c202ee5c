"""FS803 to FS806 over traces written by hand."""

from __future__ import annotations

import pytest
from pytorch_fsdp2_dcp.validate.events import (
    AsyncSaved,
    Awaited,
    Circumstances,
    CollectiveCalled,
    Escaped,
    ForwardEntered,
    GradientsClipped,
    GroupInitialised,
    Loaded,
    Location,
    MeshCreated,
    Ref,
    Saved,
    Sharded,
    StagerBuilt,
    Stepped,
)

from .traces import FUTURE, GROUP, MODEL, OPTIMIZER, OTHER, Step, does, found, saves_async

AWAITED = does(Awaited, future=FUTURE)
GLOO = does(GroupInitialised, backend="gloo")
FORWARD = does(ForwardEntered, module=MODEL, sharded=True)
MESH, STAGING = Ref(31, "mesh"), Ref(32, "staging")


# --- FS803 ---


@pytest.mark.parametrize(
    ("event", "shares"),
    [
        (FORWARD, True),
        (does(ForwardEntered, module=MODEL), False),
        (does(ForwardEntered, module=OTHER, sharded=True), False),
        (does(GradientsClipped, modules=(MODEL,), sharded=True), True),
        (does(CollectiveCalled, op="all_reduce"), True),
        (does(CollectiveCalled, op="all_reduce", group=GROUP), False),
        (does(CollectiveCalled, op="full_tensor"), False),
        (does(Saved), True),
        (does(Saved, alone=True), False),
        (does(Loaded, group=GROUP), False),
        (does(Stepped, optimizer=OPTIMIZER), False),
    ],
)
def test_what_goes_over_the_default_group_beside_a_save_is_told(event: Step, shares: bool) -> None:
    steps = [GLOO, does(Sharded, module=MODEL), saves_async(), event, AWAITED]
    assert found(*steps) == ([("FS803", 3)] if shares else [])


@pytest.mark.parametrize("backend", [None, "cpu:gloo,cuda:nccl"])
def test_with_two_backends_only_the_cpu_s_is_shared(backend: str | None) -> None:
    start = [does(GroupInitialised, backend=backend, device_bound=True), does(Sharded, module=MODEL), saves_async()]
    assert found(*start, FORWARD, AWAITED) == []
    assert found(*start, does(CollectiveCalled, op="all_reduce"), AWAITED) == []
    assert found(*start, does(CollectiveCalled, op="barrier"), AWAITED) == [("FS803", 3)]


@pytest.mark.parametrize(("shape", "shares"), [((2,), True), ((2, 2), False), (None, False)])
def test_a_mesh_of_two_dimensions_has_groups_of_its_own(shape: tuple[int, ...] | None, shares: bool) -> None:
    mesh = does(MeshCreated, mesh=MESH, shape=shape)
    steps = [GLOO, mesh, does(Sharded, module=MODEL, mesh=MESH), saves_async(), FORWARD, AWAITED]
    assert found(*steps) == ([("FS803", 4)] if shares else [])


def test_a_save_that_shares_nothing_or_has_ended_is_silent() -> None:
    barrier = does(CollectiveCalled, op="barrier")
    assert found(GLOO, saves_async(), AWAITED, barrier) == []
    assert found(GLOO, does(AsyncSaved, future=FUTURE, group=GROUP), barrier, AWAITED) == []
    assert found(GLOO, does(AsyncSaved, future=FUTURE, process=True), barrier, AWAITED) == []
    assert found(GLOO, does(AsyncSaved, future=FUTURE, process=None), barrier, AWAITED) == []
    assert found(GLOO, saves_async(), does(Escaped, of=FUTURE), barrier, AWAITED) == []


# --- FS804 ---


@pytest.mark.parametrize("process", [True, False, None])
@pytest.mark.parametrize("imported", [True, False, None])
def test_only_a_process_needs_a_module_that_can_be_imported(process: bool | None, imported: bool | None) -> None:
    saved = does(AsyncSaved, future=FUTURE, group=GROUP, process=process, imported=imported)
    assert found(saved, AWAITED) == ([("FS804", 1)] if process and imported else [])


# --- FS806 ---


def test_a_step_waits_for_the_staging_or_the_save() -> None:
    saved = does(AsyncSaved, future=FUTURE, group=GROUP, staging=STAGING)
    stepped = does(Stepped, optimizer=OPTIMIZER)
    assert found(saved, stepped, AWAITED) == [("FS806", 1)]
    assert found(saved, does(Awaited, future=STAGING), stepped, AWAITED) == []
    assert found(saved, AWAITED, stepped) == []
    assert found(saved, does(Escaped, of=STAGING), stepped, AWAITED) == []
    assert found(does(AsyncSaved, future=FUTURE, group=GROUP), stepped, AWAITED) == []


@pytest.mark.parametrize(("steps_finished", "expected"), [(3, []), (4, [("FS806", 1)])])
def test_a_hook_of_the_optimizer_may_be_what_waits(steps_finished: int, expected: list[tuple[str, int]]) -> None:
    """The probe sees the step begin before the optimizer's own hooks run; the step counts when it is over."""
    saved = does(AsyncSaved, future=FUTURE, group=GROUP, staging=STAGING)
    during = {"when": Circumstances(rank=0, step=3)}
    later = {"when": Circumstances(rank=0, step=steps_finished)}
    stepped = (Stepped, {"optimizer": OPTIMIZER, **during})
    assert found(saved, stepped, (Awaited, {"future": STAGING, **later}), AWAITED, origin="probe") == expected


# --- FS805 ---


def saves(stager: Ref | None, at: int) -> Step:
    when = Location("train.py", at)
    return AsyncSaved, {"future": FUTURE, "group": GROUP, "stager": stager, "at": when}


def test_a_stager_is_built_once() -> None:
    """Events at one place are those of a loop."""
    one, other = Ref(41, "one"), Ref(42, "other")

    def builds(stager: Ref, at: int) -> Step:
        return StagerBuilt, {"stager": stager, "at": Location("train.py", at)}

    assert found(builds(one, 10), saves(one, 11), AWAITED, builds(other, 10), saves(other, 11), AWAITED) == [
        ("FS805", 10)
    ]
    assert found(builds(one, 10), saves(one, 11), AWAITED, saves(one, 11), AWAITED) == []
    assert found(builds(one, 10), builds(other, 10), saves(one, 11), AWAITED, saves(other, 11), AWAITED) == []
    assert found(builds(one, 10), saves(one, 11), AWAITED, builds(other, 20), saves(other, 21), AWAITED) == []
    assert found(saves(None, 11), AWAITED, saves(None, 11), AWAITED) == []
