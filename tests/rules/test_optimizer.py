"""FS4 over traces written by hand."""

from __future__ import annotations

import pytest
from pytorch_fsdp2_dcp.validate.events import (
    Choice,
    EntryRegistered,
    Escaped,
    ForwardBypassed,
    OptimizerBuilt,
    Ref,
    Sharded,
    Stepped,
)

from .traces import BLOCKS, HEAD, MODEL, OPTIMIZER, OTHER, Step, does, found

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


def test_forward_without_hooks() -> None:
    assert found(does(ForwardBypassed, module=MODEL)) == [("FS403", 1)]
    generate = does(ForwardBypassed, module=MODEL, method="generate")
    assert found(does(EntryRegistered, module=MODEL, method="encode"), generate) == [("FS403", 2)]
    assert found(does(EntryRegistered, module=OTHER, method="generate"), generate) == [("FS403", 2)]


@pytest.mark.parametrize("method", ["generate", None])
def test_a_registered_method_runs_the_hooks(method: str | None) -> None:
    registered = does(EntryRegistered, module=MODEL, method=method)
    assert found(registered, does(ForwardBypassed, module=MODEL, method="generate")) == []


def test_an_escape_does_not_excuse_an_early_optimizer() -> None:
    """Whatever is done to the model elsewhere, its parameters are replaced after the optimizer has taken them."""
    assert found(BUILT, does(Escaped, of=MODEL), SHARDED) == [("FS401", 1)]
