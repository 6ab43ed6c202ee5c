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
    trace = program(f"loss = F.mse_loss(model(x), y)\n{more}\nloss.backward()", START)
    assert only(trace, Backward).averaged is None


@pytest.mark.parametrize("name", ["set_requires_all_reduce", "set_is_last_backward"])
def test_when_replicas_are_reduced_over(name: str) -> None:
    assert only(program(f"model.{name}(False)", START), AllReduceSet).module.name == "model"
