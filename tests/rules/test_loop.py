"""FS4, gradients in the loop, over traces written by hand."""

from __future__ import annotations

import pytest
from pytorch_fsdp2_dcp.validate.events import (
    Backward,
    Choice,
    CollectiveCalled,
    Escaped,
    ForwardEntered,
    GradientsClipped,
    GradientsScaled,
    GradientSyncSet,
    OptimizerBuilt,
    Origin,
    Parallelised,
    PartialRead,
    Ref,
    Sharded,
    Stepped,
)

from .traces import BLOCKS, MODEL, OPTIMIZER, OTHER, Step, does, found

BUILT = does(OptimizerBuilt, optimizer=OPTIMIZER, cls="AdamW", modules=(MODEL,))
BACKWARD, STEPPED = does(Backward), does(Stepped, optimizer=OPTIMIZER)
OFF, ON, SET = (does(GradientSyncSet, module=MODEL, on=on) for on in (False, True, None))
SOMETIMES_OFF = does(GradientSyncSet, module=MODEL, on=False, branch=Choice(1, True))
SOMETIMES_ON = does(GradientSyncSet, module=MODEL, on=True, branch=Choice(1, True))


@pytest.mark.parametrize(
    "steps",
    [
        (BUILT, OFF, BACKWARD),
        (BUILT, ON, OFF, BACKWARD, BACKWARD, ON),
        (BUILT, SOMETIMES_OFF, BACKWARD),
        (BUILT, does(GradientSyncSet, module=BLOCKS, on=False), BACKWARD),
        (OFF, BACKWARD),
    ],
)
def test_sync_is_off_in_the_last_backward(steps: tuple[Step, ...]) -> None:
    assert found(*steps, STEPPED) == [("FS405", len(steps) + 1)]


@pytest.mark.parametrize(
    "steps",
    [
        (BUILT, OFF, BACKWARD, ON, BACKWARD),
        (BUILT, OFF, BACKWARD, SET, BACKWARD),
        (BUILT, OFF, SOMETIMES_ON, BACKWARD),
        (BUILT, ON, SOMETIMES_OFF, BACKWARD),
        (BUILT, does(GradientSyncSet, module=OTHER, on=False), BACKWARD),
        (BUILT, OFF, does(Escaped, of=MODEL), BACKWARD),
        (does(OptimizerBuilt, optimizer=OPTIMIZER, cls="AdamW", modules=(OTHER,)), OFF, BACKWARD),
        (BUILT, OFF),
    ],
)
def test_sync_is_on_or_may_be(steps: tuple[Step, ...]) -> None:
    assert found(*steps, STEPPED) == []


NUMBER = Ref(41, "grad.norm()")
READ = does(PartialRead, value=NUMBER)
SCALED = does(GradientsScaled, by=(NUMBER,))
REDUCED = does(CollectiveCalled, op="all_reduce", of=(NUMBER,))
SOMETHING = does(CollectiveCalled, op="all_reduce")


def test_a_part_that_is_read_as_the_whole() -> None:
    assert found(READ) == [("FS406", 1)]
    assert found(SOMETHING, READ, SOMETHING) == [("FS406", 2)]
    assert found(READ, BACKWARD, SOMETHING, origin="probe") == [("FS406", 1)]


def test_clipping_by_a_part_is_told_where_it_clips() -> None:
    assert found(READ, SCALED) == [("FS407", 2)]
    assert found(SCALED) == [("FS407", 1)]


@pytest.mark.parametrize("steps", [(READ, REDUCED), (READ, REDUCED, SCALED), (READ, does(Escaped, of=NUMBER), SCALED)])
def test_a_part_that_is_reduced_or_may_be(steps: tuple[Step, ...]) -> None:
    assert found(*steps) == []


def test_in_a_run_any_reduction_after_the_read_may_be_its_own() -> None:
    assert found(READ, SOMETHING, BACKWARD, origin="probe") == []


def test_a_loss_that_was_reduced() -> None:
    loss = Ref(42, "loss")
    reduced, backward = does(CollectiveCalled, op="all_reduce", of=(loss,)), does(Backward, of=(loss,))
    sharded = does(Sharded, module=MODEL)
    assert found(sharded, reduced, backward) == [("FS409", 3)]
    assert found(sharded, reduced, BACKWARD) == []
    assert found(sharded, SOMETHING, BACKWARD) == []
    assert found(reduced, backward) == []  # nothing averages its gradients


# --- clipping over several meshes ---


@pytest.mark.parametrize("mixed", [True, False, None])
def test_gradients_of_several_meshes_are_not_clipped_together(mixed: bool | None) -> None:
    clipped = does(GradientsClipped, modules=(MODEL,), mixed=mixed)
    expected = [("FS408", 2)] if mixed else []
    assert [f for f in found(does(Parallelised, module=MODEL), clipped) if f[0] == "FS408"] == expected
    assert "FS408" not in [code for code, _ in found(does(Escaped, of=MODEL), clipped)]


# --- means over the tokens of a rank ---

OWN = does(Backward, counted_alone=True)


@pytest.mark.parametrize("origin", ["reader", "probe"])
def test_a_mean_over_the_tokens_of_one_rank(origin: Origin) -> None:
    entered = does(ForwardEntered, module=MODEL, sharded=True)
    assert found(entered, OWN, origin=origin) == [("FS410", 2)]
    assert found(entered, BACKWARD, origin=origin) == []


@pytest.mark.parametrize(
    "steps",
    [
        (OWN,),
        (does(ForwardEntered, module=MODEL), OWN),
        (does(ForwardEntered, module=MODEL, sharded=True), does(Escaped, of=MODEL), OWN),
    ],
)
def test_a_mean_that_no_sharded_model_made_or_that_may_be_scaled(steps: tuple[Step, ...]) -> None:
    assert found(*steps) == []
