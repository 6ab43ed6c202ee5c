"""FS4, the optimizer, over traces written by hand."""

from __future__ import annotations

import pytest
from pytorch_fsdp2_dcp.validate.events import (
    Backward,
    Choice,
    Escaped,
    ForwardEntered,
    OptimizerBuilt,
    Ref,
    Resharded,
    Sharded,
    StateTaken,
    Stepped,
    Unsharded,
    Via,
)

from .traces import BLOCKS, HEAD, MODEL, OPTIMIZER, OTHER, STATE, Step, does, found

BUILT = does(OptimizerBuilt, optimizer=OPTIMIZER, cls="AdamW", modules=(MODEL,))
SECOND = Ref(21, "optimizer")
REBUILT = does(OptimizerBuilt, optimizer=SECOND, cls="AdamW", modules=(MODEL,))
SHARDED = does(Sharded, module=MODEL)


@pytest.mark.parametrize(
    "steps",
    [
        (BUILT, SHARDED),
        (BUILT, SHARDED, does(Stepped, optimizer=OPTIMIZER)),
        (BUILT, does(Sharded, module=BLOCKS), SHARDED),
        (BUILT, SHARDED, REBUILT, does(Stepped, optimizer=OPTIMIZER)),
    ],
)
def test_an_optimizer_over_parameters_that_are_replaced_later(steps: tuple[Step, ...]) -> None:
    assert found(*steps) == [("FS401", 1)]


def test_between_the_blocks_and_the_root_is_too_early_for_what_the_root_takes() -> None:
    assert found(does(Sharded, module=BLOCKS), BUILT, SHARDED) == [("FS401", 2)]


@pytest.mark.parametrize(
    "steps",
    [
        (SHARDED, BUILT),
        (BUILT, does(Sharded, module=OTHER)),
        (BUILT, SHARDED, REBUILT, does(Stepped, optimizer=SECOND)),
        (BUILT, does(Stepped, optimizer=OPTIMIZER), SHARDED, REBUILT, does(Stepped, optimizer=SECOND)),
        (does(Sharded, module=HEAD), does(OptimizerBuilt, optimizer=OPTIMIZER, cls="SGD", modules=(HEAD,)), SHARDED),
        (does(OptimizerBuilt, optimizer=OPTIMIZER, cls="SGD", branch=Choice(1, True), modules=(MODEL,)),
         does(Sharded, module=MODEL, branch=Choice(1, False))),
        (does(OptimizerBuilt, optimizer=OPTIMIZER, cls="SGD"), SHARDED),
    ],
)  # fmt: skip
def test_an_optimizer_whose_parameters_stay(steps: tuple[Step, ...]) -> None:
    assert found(*steps) == []


def test_an_escape_does_not_excuse_an_early_optimizer() -> None:
    """Whatever is done to the model elsewhere, its parameters are replaced after the optimizer has taken them."""
    assert found(BUILT, does(Escaped, of=MODEL), SHARDED) == [("FS401", 1)]


ROOT = does(Sharded, module=MODEL, manages=True, keeps=True)
ENTERED = does(ForwardEntered, module=MODEL, sharded=True)


@pytest.mark.parametrize(
    "steps",
    [
        (does(Sharded, module=BLOCKS, manages=True, keeps=True), ROOT, ENTERED),
        (ROOT, does(Backward), ENTERED),
        (ROOT, does(Sharded, module=OTHER), does(Unsharded, module=MODEL)),
    ],
)
def test_an_optimizer_over_gathered_parameters(steps: tuple[Step, ...]) -> None:
    assert found(*steps, BUILT) == [("FS402", 4 if len(steps) == 3 else 3)]


@pytest.mark.parametrize(
    "steps",
    [
        (ROOT,),
        (ROOT, ENTERED, does(Backward)),
        (ROOT, ENTERED, does(Resharded, module=MODEL)),
        (ROOT, ENTERED, does(StateTaken, of=(MODEL,), state=STATE, via=Via.METHOD)),
        (ROOT, does(Escaped, of=MODEL), ENTERED),
        (ROOT, does(ForwardEntered, module=OTHER)),
        (does(Sharded, module=MODEL, manages=True, keeps=False), ENTERED),
        (does(Sharded, module=MODEL, manages=True), ENTERED),
        (does(Sharded, module=MODEL, keeps=True), ENTERED),
        (does(Sharded, module=MODEL, manages=False, keeps=True), ENTERED),
        (does(Sharded, module=HEAD, manages=True, keeps=True), does(Sharded, module=MODEL, manages=False), ENTERED),
    ],
)  # fmt: skip
def test_an_optimizer_over_shards(steps: tuple[Step, ...]) -> None:
    assert found(*steps, BUILT) == []
