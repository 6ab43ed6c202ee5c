"""What the reader knows of numbers that are made of one rank's part, and of values that were reduced."""

from __future__ import annotations

import pytest
from pytorch_fsdp2_dcp.validate.events import Backward, CollectiveCalled, GradientsScaled, PartialRead

from .programs import SHARDED, only, program


@pytest.mark.parametrize(
    "number",
    [
        "p.grad.norm()",
        "p.grad.abs().max()",
        "(p.grad ** 2).sum()",
        "p.grad.pow(2).sum() + p.pow(2).sum()",
        "torch.linalg.vector_norm(p.grad)",
        "torch._foreach_norm([p.grad])[0]",
    ],
)
def test_a_reduction_that_is_pending(number: str) -> None:
    trace = program(f"p = next(model.parameters())\nx = ({number}).item()", SHARDED)
    assert {read.value.name for read in trace.of(PartialRead)} == {number}


@pytest.mark.parametrize(
    "number",
    [
        "p.grad.norm() * 2",
        "p.grad.norm() ** 2 + p.norm() ** 2",
        "p.grad.pow(2).sum().sqrt()",
        "p.grad.norm(dim=0)",
        "p.grad.sum(0)",
        "p.grad.full_tensor().norm()",
        "p.grad.to_local().norm()",
        "torch.stack([p.grad.norm(), p.norm()]).norm()",
        "(p.grad * p).sum()",
    ],
)
def test_what_is_whole_or_not_known_to_be_a_part(number: str) -> None:
    trace = program(f"p = next(model.parameters())\nx = ({number}).item()", SHARDED)
    assert not list(trace.of(PartialRead))


def test_a_number_of_one_rank_keeps_its_origin_until_it_is_reduced() -> None:
    text = """
        p = next(model.parameters())
        norm = torch.tensor(max(float(p.grad.norm()), 1e-6))
        p.grad.mul_(1 / norm)
        dist.all_reduce(norm)
        p.grad.mul_(1 / norm)
    """
    trace = program(text, SHARDED)
    number = only(trace, PartialRead).value
    assert only(trace, GradientsScaled).by == (number,)
    assert number in only(trace, CollectiveCalled).of


@pytest.mark.parametrize(
    ("call", "escapes"), [("sync(norm)", True), ("logger.info(norm)", False), ("print(norm)", False)]
)
def test_a_number_that_goes_out_of_sight(call: str, escapes: bool) -> None:
    trace = program(f"norm = next(model.parameters()).norm().item()\n{call}", SHARDED)
    assert trace.escaped(only(trace, PartialRead).value) is escapes


@pytest.mark.parametrize(
    ("loss", "same"),
    [("loss", True), ("loss / 2", True), ("loss * 2", True), ("other / loss", False), ("loss + other", False)],
)
def test_what_is_still_the_reduced_loss(loss: str, same: bool) -> None:
    trace = program(f"loss = model(x).mean()\ndist.all_reduce(loss)\n({loss}).backward()", SHARDED)
    assert bool(set(only(trace, Backward).of) & set(only(trace, CollectiveCalled).of)) is same
