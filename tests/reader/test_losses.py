"""Which losses are means that nothing scales."""

from __future__ import annotations

import pytest
from pytorch_fsdp2_dcp.validate.events import AllReduceSet, Backward

from .programs import SHARDED, only, program

START = SHARDED + "\nimport torch.nn.functional as F\nx, y, n = load(), load(), load()\n"


@pytest.mark.parametrize(
    ("loss", "averaged"),
    [
        ("F.cross_entropy(model(x), y)", True),
        ("F.cross_entropy(model(x), y, reduction='mean')", True),
        ("F.cross_entropy(model(x), y, reduction='sum')", None),
        ("F.cross_entropy(model(x), y, reduction=n)", None),
        ("F.cross_entropy(model(x), y, **n)", None),
        ("nn.CrossEntropyLoss()(model(x), y)", True),
        ("nn.CrossEntropyLoss(reduction='sum')(model(x), y)", None),
        ("model(x).mean()", True),
        ("model(x).mean(dim=0)", None),
        ("model(x).sum()", None),
        ("model(x).mean() / n", None),
        ("model(x).mean() + F.mse_loss(x, y)", None),
        ("model(x).loss", None),
        ("torch.amp.GradScaler().scale(model(x).mean())", True),
    ],
)
def test_what_a_backward_starts_from(loss: str, averaged: bool | None) -> None:
    assert only(program(f"loss = {loss}\nloss.backward()", START), Backward).averaged is averaged


FILLED = "y = y.masked_fill(y == 0, -100)\n"


@pytest.mark.parametrize(
    ("loss", "alone"),
    [
        ("F.cross_entropy(model(x), y)", True),
        ("F.cross_entropy(model(x), y, ignore_index=-100) / n.accumulate", True),
        ("2 * F.nll_loss(model(x), y) / len(batches)", True),
        ("nn.CrossEntropyLoss()(model(x), y)", True),
        ("F.cross_entropy(model(x), y, ignore_index=255)", True),
        ("F.cross_entropy(model(x), y, ignore_index=n.pad_id)", True),
        ("F.cross_entropy(model(x), y, ignore_index=n.ignored)", None),
        ("F.cross_entropy(model(x), y, ignore_index=-1)", None),
        ("F.cross_entropy(model(x), y, reduction='sum')", None),
        ("F.cross_entropy(model(x), y, reduction='sum') / (y != 0).sum()", True),
        ("nn.CrossEntropyLoss(reduction='sum')(model(x), y) / y.ne(0).sum().item()", True),
        ("(model(x) * mask).sum() / max(mask.sum(), 1)", True),
        ("(model(x) * mask).sum() / (mask.float().sum() + 1e-8)", True),
        ("torch.sum(model(x) * mask) / torch.sum(mask)", True),
        ("torch.sum(model(x) * mask) / torch.count_nonzero(y)", True),
        ("model(x)[mask].mean()", True),
        ("model(x)[0].mean()", None),
        ("(model(x) * mask).sum(1) / mask.sum(1)", None),
        ("(model(x) * mask).sum() / total_mask.sum()", None),
        ("(model(x) * mask).sum() / n", None),
        ("(model(x) * mask).sum() / x.sum()", None),
        ("F.mse_loss(model(x), y)", None),
        ("F.cross_entropy(model(x), y) * n", None),
        ("F.cross_entropy(model(x), y) / len(tokens)", None),
        ("F.cross_entropy(model(x), y) / n.accumulated_tokens", None),
        ("F.cross_entropy(model(x), y) + F.mse_loss(x, y)", None),
    ],
)
def test_which_means_are_over_what_a_rank_counts_for_itself(loss: str, alone: bool | None) -> None:
    start = START + FILLED + "mask, total_mask, batches, tokens = load(), load(), load(), load()\n"
    assert only(program(f"loss = {loss}\nloss.backward()", start), Backward).counted_alone is alone


@pytest.mark.parametrize(
    ("filled", "alone"),
    [
        ("", None),
        ("y[y == 0] = -100", True),
        ("IGNORED = -100\ny = torch.where(y == 0, IGNORED, y)", True),
        ("y = torch.tensor([-100] * 4 + [1])", True),
        ("y = [-100 if t == 0 else t for t in y]", True),
        ("y = nn.utils.rnn.pad_sequence(y, padding_value=-100)", True),
        ("IGNORED = -100", None),
        ("y = torch.full((4,), 100)", None),
    ],
)
def test_what_is_ignored_unless_the_program_says_so_is_in_the_targets_where_it_puts_it(
    filled: str, alone: bool | None
) -> None:
    loss = "loss = F.cross_entropy(model(x), y)\nloss.backward()"
    assert only(program(f"{filled}\n{loss}", START), Backward).counted_alone is alone


@pytest.mark.parametrize("count", ["count", "count.item()", "count.clamp(min=1)"])
def test_what_was_counted_on_all_ranks_is_no_count_of_one(count: str) -> None:
    text = f"count = (y != 0).sum()\ndist.all_reduce(count)\n(F.nll_loss(x, y, reduction='sum') / {count}).backward()"
    assert only(program(text, START), Backward).counted_alone is None


@pytest.mark.parametrize(
    "more",
    [
        "loss.div_(n)",
        "loss *= n",
        "def scale():\n    for p in model.parameters(): p.grad.div_(n)",
        "def scale():\n    for p in model.parameters(): p.grad /= n",
        "def scale(): torch._foreach_div_([p.grad for p in model.parameters()], n)",
        "model.set_gradient_divide_factor(n)",
    ],
)
def test_it_may_be_scaled_otherwise(more: str) -> None:
    trace = program(f"loss = F.nll_loss(model(x), y, ignore_index=0)\n{more}\nloss.backward()", START)
    told = only(trace, Backward)
    assert (told.averaged, told.counted_alone) == (None, None)


@pytest.mark.parametrize("name", ["set_requires_all_reduce", "set_is_last_backward"])
def test_when_replicas_are_reduced_over(name: str) -> None:
    assert only(program(f"model.{name}(False)", START), AllReduceSet).module.name == "model"
