"""Gradients that are added up over micro-batches, over traces written by hand."""

from __future__ import annotations

import pytest
from pytorch_fsdp2_dcp.validate.events import (
    AllReduceSet,
    Backward,
    Choice,
    Escaped,
    ForwardEntered,
    GradientsCleared,
    GradientSyncSet,
    Location,
    MeshCreated,
    OptimizerBuilt,
    Origin,
    Ref,
    Sharded,
    Stepped,
)

from .traces import MODEL, OPTIMIZER, OTHER, Step, does, found

MESH = Ref(51, "mesh")
HYBRID = does(Sharded, module=MODEL, mesh=MESH, mesh_dims=("dp_replicate", "dp_shard"), manages=True)


def forward(line: int = 101, **fields: object) -> Step:
    return does(ForwardEntered, **{"module": MODEL, "sharded": True, "at": Location("train.py", line), **fields})


def backward(line: int = 102, *, averaged: bool | None = True, branch: Choice | None = None) -> Step:
    return does(Backward, at=Location("train.py", line), averaged=averaged, branch=branch)


MICRO = (forward(), backward())
STEPPED, CLEARED = does(Stepped, optimizer=OPTIMIZER), does(GradientsCleared, of=OPTIMIZER)
PERHAPS = does(Stepped, optimizer=OPTIMIZER, branch=Choice(1, True))


def codes(*steps: Step) -> set[str]:
    return {code for code, _ in found(*steps)} & {"FS411", "FS413"}


@pytest.mark.parametrize(
    ("steps", "adds_up"),
    [
        ((*MICRO, *MICRO, STEPPED), True),
        ((*MICRO, PERHAPS, *MICRO, PERHAPS), True),
        ((*MICRO, *MICRO), False),
        ((*MICRO, STEPPED, *MICRO, STEPPED), False),
        ((*MICRO, CLEARED, *MICRO, STEPPED), False),
        ((*MICRO, PERHAPS, CLEARED, *MICRO, STEPPED), False),
        ((*MICRO, backward(), STEPPED), False),
        ((*MICRO, forward(201), backward(202), STEPPED), False),
        ((*MICRO, forward(sharded=False), backward(), STEPPED), False),
    ],
)
def test_gradients_add_up_from_one_forward_to_the_next(steps: tuple[Step, ...], adds_up: bool) -> None:
    assert codes(HYBRID, *steps) == ({"FS411", "FS413"} if adds_up else set())


def test_a_loss_that_may_be_scaled_is_no_mistake() -> None:
    micro = (forward(), backward(averaged=None))
    assert codes(*micro, *micro, STEPPED) == set()
    assert codes(does(Escaped, of=MODEL), *MICRO, *MICRO, STEPPED) == set()


@pytest.mark.parametrize(
    "more",
    [
        does(AllReduceSet, module=MODEL),
        does(GradientSyncSet, module=MODEL, on=True),
        does(MeshCreated, mesh=MESH, shape=(1, 8)),
    ],
)
def test_replicas_may_be_reduced_over_once(more: Step) -> None:
    assert "FS413" not in codes(more, HYBRID, *MICRO, *MICRO, STEPPED)


@pytest.mark.parametrize(
    "fields", [{"mesh_dims": ("dp_shard",)}, {"mesh_dims": ("dp", "tp")}, {"mesh_dims": None}, {"module": OTHER}]
)
def test_only_replicas_are_reduced_over(fields: dict[str, object]) -> None:
    sharded = does(Sharded, **{"module": MODEL, "mesh_dims": ("dp_replicate", "dp_shard"), "manages": True, **fields})
    assert "FS413" not in codes(sharded, *MICRO, *MICRO, STEPPED)


BUILT = does(OptimizerBuilt, optimizer=OPTIMIZER, cls="AdamW", modules=(MODEL,))
WASTED = (*MICRO, CLEARED, *MICRO, STEPPED)
KEPT = (*MICRO, *MICRO, STEPPED, CLEARED)


def wasted(*steps: Step, origin: Origin = "reader") -> list[int]:
    return [line for code, line in found(*steps, origin=origin) if code == "FS415"]


def test_gradients_are_cleared_before_they_are_stepped_by() -> None:
    assert wasted(BUILT, *WASTED) == [4]
    assert wasted(BUILT, *WASTED, *WASTED, origin="probe") == [4]
    assert wasted(BUILT, *KEPT, *WASTED, *WASTED, origin="probe") == [10]


@pytest.mark.parametrize(
    "steps",
    [
        (BUILT, *KEPT),
        (BUILT, *MICRO, STEPPED, CLEARED, *MICRO, STEPPED),
        (BUILT, *MICRO, CLEARED, *MICRO, *MICRO, STEPPED),
        (BUILT, *MICRO, CLEARED, forward(201), backward(202), STEPPED),
        (BUILT, *MICRO, CLEARED, forward(sharded=False), backward(), STEPPED),
        (BUILT, *MICRO, does(GradientsCleared, of=OPTIMIZER, branch=Choice(1, True)), *MICRO, STEPPED),
        (BUILT, *MICRO, CLEARED, *MICRO),
        (BUILT, does(OptimizerBuilt, optimizer=OTHER, cls="Adam"), *WASTED),
        (does(OptimizerBuilt, optimizer=OPTIMIZER, cls="SAM"), *WASTED),
        WASTED,
    ],
)
def test_gradients_are_not_known_to_be_thrown_away(steps: tuple[Step, ...]) -> None:
    assert wasted(*steps) == []


@pytest.mark.parametrize("steps", [WASTED, (*KEPT, *WASTED, *KEPT), (*WASTED, *KEPT, *WASTED)])
def test_of_a_run_gradients_of_some_steps_may_be_dropped(steps: tuple[Step, ...]) -> None:
    assert wasted(BUILT, *steps, origin="probe") == []
