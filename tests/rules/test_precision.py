"""FS204, FS205, FS206, FS212 and FS412 over traces written by hand."""

from __future__ import annotations

import pytest
from pytorch_fsdp2_dcp.validate.events import (
    Attached,
    Backward,
    Cast,
    Choice,
    Escaped,
    OptimizerBuilt,
    Precision,
    Sharded,
    WrapperApiUsed,
)
from pytorch_fsdp2_dcp.validate.rules import judge

from .traces import BLOCKS, HEAD, MODEL, OPTIMIZER, OTHER, Step, does, found, trace

BLOCK_BY_BLOCK, ROOT = does(Sharded, module=BLOCKS), does(Sharded, module=MODEL)
ATTACHED = does(Attached, module=HEAD, to=MODEL, parameters=("weight",))
TRAINED = does(OptimizerBuilt, optimizer=OPTIMIZER, cls="AdamW", modules=(MODEL,))
CAST = does(Cast, module=MODEL, dtype="bfloat16")
IN_BFLOAT16 = does(OptimizerBuilt, optimizer=OPTIMIZER, cls="AdamW", modules=(MODEL,), dtype="bfloat16")


def test_what_is_attached_after_sharding_is_trained() -> None:
    assert found(BLOCK_BY_BLOCK, ROOT, ATTACHED, TRAINED) == [("FS204", 3)]


@pytest.mark.parametrize(
    "steps",
    [
        (ROOT, ATTACHED),
        (ATTACHED, ROOT, TRAINED),
        (BLOCK_BY_BLOCK, ATTACHED, ROOT, TRAINED),
        (ROOT, TRAINED, ATTACHED),
        (ROOT, ATTACHED, does(Escaped, of=HEAD), TRAINED),
        (does(Sharded, module=OTHER), ATTACHED, TRAINED),
        (ROOT, ATTACHED, does(OptimizerBuilt, optimizer=OPTIMIZER, cls="AdamW", modules=(OTHER,))),
    ],
)
def test_what_is_attached_is_sharded_or_not_trained(steps: tuple[Step, ...]) -> None:
    assert found(*steps) == []


def test_sharded_parameters_that_are_trained_are_cast() -> None:
    assert found(ROOT, CAST, TRAINED) == [("FS205", 2)]
    assert found(ROOT, TRAINED, CAST) == [("FS205", 3)]
    assert found(ROOT, CAST, IN_BFLOAT16) == [("FS205", 2)], "told where it happens, and once"
    assert found(BLOCK_BY_BLOCK, does(Cast, module=HEAD, dtype="float16"), ROOT, TRAINED) == []


@pytest.mark.parametrize(
    "steps",
    [
        (ROOT, CAST),
        (CAST, ROOT, TRAINED),
        (ROOT, does(Cast, module=MODEL, dtype="float32"), TRAINED),
        (ROOT, does(Cast, module=MODEL, dtype=None), TRAINED),
        (ROOT, does(Cast, module=OTHER, dtype="bfloat16"), TRAINED),
        (does(Sharded, module=MODEL, branch=Choice(1, True)), CAST, TRAINED),
    ],
)
def test_casts_that_harm_nothing(steps: tuple[Step, ...]) -> None:
    assert found(*steps) == []


def test_adam_steps_sharded_parameters_in_low_precision() -> None:
    assert found(ROOT, IN_BFLOAT16) == [("FS206", 2)]
    (finding,) = judge([trace(CAST, ROOT, IN_BFLOAT16)])
    assert [(place.line, word) for place, word in finding.related] == [(1, "cast here")]
    assert found(IN_BFLOAT16) == [], "nothing is sharded"
    plain = does(OptimizerBuilt, optimizer=OPTIMIZER, cls="SGD", modules=(MODEL,), dtype="bfloat16")
    assert found(ROOT, plain) == []


def test_the_wrappers_api_is_used_on_what_is_not_wrapped() -> None:
    used = does(WrapperApiUsed, module=MODEL, name="clip_grad_norm_")
    assert found(ROOT, used) == [("FS212", 2)]
    assert found(used, ROOT) == []
    assert found(does(Sharded, module=MODEL, branch=Choice(1, True)), used) == [], "it may be wrapped otherwise"
    assert "torch.nn.utils.clip_grad_norm_" in judge([trace(ROOT, used)])[0].message
    by_class = does(WrapperApiUsed, module=MODEL, name="FullyShardedDataParallel.state_dict_type")
    assert "get_state_dict" in judge([trace(ROOT, by_class)])[0].message


@pytest.mark.parametrize(
    "precision, is_found",
    [
        (Precision(param="bfloat16"), True),
        (Precision(param="float16"), True),
        (Precision(param="float32"), False),
        (Precision(param="bfloat16", reduce="float32"), False),
        (Precision(param="bfloat16", reduce="bfloat16"), False),
        (Precision(), False),
        (None, False),
    ],
)
def test_gradients_are_reduced_in_what_the_policy_says(precision: Precision | None, is_found: bool) -> None:
    sharded = does(Sharded, module=MODEL, precision=precision)
    optimizer = does(OptimizerBuilt, optimizer=OPTIMIZER, cls="AdamW", modules=(MODEL,))
    assert found(sharded, optimizer) == ([("FS412", 1)] if is_found else [])
    assert found(sharded) == []


def test_one_policy_is_one_finding_at_the_root() -> None:
    low = Precision(param="bfloat16")
    block, root = (does(Sharded, module=module, precision=low) for module in (BLOCKS, MODEL))
    optimizer = does(OptimizerBuilt, optimizer=OPTIMIZER, cls="AdamW", modules=(MODEL,))
    assert found(block, root, optimizer) == [("FS412", 2)]


def test_a_loss_that_is_taken_in_few_bits_is_told_once() -> None:
    assert found(does(Backward, low="bfloat16"), does(Backward, low="bfloat16"), origin="probe") == [("FS412", 1)]
    assert found(does(Backward), origin="probe") == []
