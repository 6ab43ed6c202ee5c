"""What one element weighs in a loss, as the graph of the loss tells."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
import torch.nn.functional as F  # noqa: E402
from pytorch_fsdp2_dcp.validate.events import Backward  # noqa: E402
from pytorch_fsdp2_dcp.validate.probe.loop import low_entropy  # noqa: E402
from pytorch_fsdp2_dcp.validate.probe.weights import Weight, Weights, differ  # noqa: E402

from ..runs import traces_of  # noqa: E402

LOGITS = torch.randn(4, 8, requires_grad=True)
TARGETS = torch.tensor([1, 2, -100, 3])
MASK = TARGETS != -100
EACH = F.cross_entropy(LOGITS, TARGETS, reduction="none")


@pytest.mark.parametrize(
    ("loss", "weight"),
    [
        (F.cross_entropy(LOGITS, TARGETS), Weight(1 / 3, chosen=True)),
        (3 * F.cross_entropy(LOGITS, TARGETS).double() / 2, Weight(1 / 2, chosen=True)),
        (F.cross_entropy(LOGITS.T[None], TARGETS[None]), Weight(1 / 3, chosen=True)),
        (F.cross_entropy(LOGITS, TARGETS.clamp(min=0)), Weight(1 / 4, chosen=False)),
        (F.cross_entropy(LOGITS, TARGETS, reduction="sum") / MASK.sum(), Weight(1 / 3, chosen=True)),
        ((EACH * MASK).sum() * 2 / MASK.sum().item(), Weight(2 / 3, chosen=True)),
        (EACH[MASK].mean(), Weight(1 / 3, chosen=True)),
        (EACH.mean(), None),
        (EACH.sum(), None),
        ((EACH / MASK.sum()).sum(), None),
        (F.cross_entropy(LOGITS, TARGETS) + EACH.mean(), None),
        (F.cross_entropy(LOGITS, TARGETS, weight=torch.ones(8)), None),
        (F.cross_entropy(LOGITS, torch.full((4,), -100)), None),
        (MASK.sum(), None),
        ([EACH], None),
    ],
)
def test_the_weight_of_each_element(loss: object, weight: Weight | None) -> None:
    found = Weights().of(loss)
    if weight is None or found is None:
        assert found is weight
    else:
        assert (found.of_each, found.chosen) == (pytest.approx(weight.of_each), weight.chosen)


SHORT = LOGITS.bfloat16()


@pytest.mark.parametrize(
    ("loss", "dtype"),
    [
        (F.cross_entropy(SHORT, TARGETS), "bfloat16"),
        (F.cross_entropy(LOGITS.half(), TARGETS) / 2, "float16"),
        (F.cross_entropy(SHORT.float(), TARGETS) / 2, None),
        (F.cross_entropy(SHORT.float(), TARGETS).bfloat16(), None),
        (F.mse_loss(SHORT, SHORT.detach() + 1), None),
        (SHORT.sum() * 2, None),
        (torch.tensor(1.0, dtype=torch.bfloat16), None),
        ([EACH], None),
    ],
)
def test_a_cross_entropy_in_few_bits(loss: object, dtype: str | None) -> None:
    assert low_entropy(loss) == dtype


def test_a_graph_that_is_gone_tells_nothing() -> None:
    loss = F.cross_entropy(LOGITS, TARGETS) / 2
    loss.backward()
    assert Weights().of(loss) is None


def test_only_the_first_losses_are_looked_at() -> None:
    weights = Weights()
    found = [weights.of(F.cross_entropy(LOGITS, TARGETS)) for _ in range(20)]
    assert found[0] is not None
    assert found[-1] is None


@pytest.mark.parametrize(
    ("weights", "apart"),
    [
        ((Weight(0.5, True), Weight(0.25, True)), True),
        ((Weight(0.5, True), Weight(0.25, False)), True),
        ((Weight(0.5, False), Weight(0.25, False)), False),
        ((Weight(0.5, True), Weight(0.5001, True)), False),
        ((Weight(-0.5, True), Weight(-0.25, True)), True),
    ],
)
def test_ranks_are_compared_where_something_is_left_out(weights: tuple[Weight, Weight], apart: bool) -> None:
    assert differ(weights) is apart


@pytest.mark.slow
def test_backwards_are_compared_over_the_ranks(tmp_path: Path) -> None:
    script = """
        model = shard(Model())
        for ignored in (0, 2 * rank):
            targets = torch.arange(1, 5)
            targets[:ignored] = -100
            nn.functional.cross_entropy(model(torch.randn(4, 8)), targets).backward()
    """
    for trace in traces_of(tmp_path, script):
        assert [b.counted_alone for b in trace.of(Backward)] == [None, True]
