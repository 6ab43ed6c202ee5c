"""The proofs `parity` and `reshard`: a right script passes them, and fails with one mistake at a time."""

from __future__ import annotations

from pathlib import Path

import pytest
from pytorch_fsdp2_dcp.validate.proofs.parity import Parity
from pytorch_fsdp2_dcp.validate.proofs.reshard import Reshard

from .topologies import WITHOUT_DROPOUT, bench_for, prove, trainer

pytestmark = pytest.mark.slow


def test_a_right_script_with_dropout_computes_the_same_on_other_ranks(tmp_path: Path) -> None:
    bench = bench_for(tmp_path, trainer())
    parity, reshard = prove(Parity(), bench), prove(Reshard(), bench)
    assert (parity.status, reshard.status) == ("pass", "pass"), (parity, reshard)
    assert parity.figures["dropout_off"]
    assert parity.figures["steps_compared"] == 7
    assert 0 < parity.figures["max_loss_difference"] < 1e-5
    assert parity.figures["max_grad_norm_difference"] < 1e-5
    assert [target["nproc"] for target in reshard.figures["targets"]] == [1, 4]
    for target in reshard.figures["targets"]:
        assert target["tensors"] == 37, "9 parameters, 27 tensors of the optimizer and a buffer"
        assert (target["tensors_that_differ"], target["steps_compared"]) == ([], 4)


MULTIPLIED = (
    ('"done": torch.tensor(self.done)', '"done": torch.tensor(self.done * self.world)'),
    ('int(state["done"])', 'int(state["done"]) // self.world'),
)
BY_RANK = (('            "done":', '            f"random-{self.rank}": torch.get_rng_state(),\n            "done":'),)
AFRESH = (
    ("dcp.load(state,", "dcp.load(state if self.world == 2 else {k: v for k, v in state.items() if k != 'opt'},"),
)
COUNTER = (
    ('self.net, state["net"])', 'self.net, state["net"] | {"seen": self.net.seen * 0})'),
)  # fmt: skip
PLACE = (("        self.done = int", "        self.done = self.done if self.world == 1 else int"),)


@pytest.mark.parametrize(
    ("edits", "ranks", "words"),
    [
        pytest.param(MULTIPLIED, 1, "it takes", id="a count of steps times ranks"),
        pytest.param(BY_RANK, 4, "it cannot continue, though it runs there from scratch: ", id="a key a rank"),
        pytest.param(AFRESH, 1, "of 37 tensors, `table.weight.step` (optimizer", id="optimizer state lost"),
        pytest.param(COUNTER, 1, "`seen` (buffers) has other values", id="a buffer", marks=pytest.mark.matrix),
        pytest.param(PLACE, 1, "it starts over", id="steps forgotten", marks=pytest.mark.matrix),
    ],
)
def test_what_does_not_continue_on_other_ranks_fails(
    edits: tuple[tuple[str, str], ...], ranks: int, words: str, tmp_path: Path
) -> None:
    verdict = prove(Reshard(), bench_for(tmp_path, trainer(*WITHOUT_DROPOUT, *edits), to_nproc=ranks))
    assert verdict.status == "fail", verdict
    assert words in verdict.reason


TWICE = (("loss.backward()", "(loss * self.world).backward()"),)
ADDED = (
    (
        "loss.backward()",
        "loss.backward()\n        for p in self.net.parameters():\n            p.grad.mul_(self.world)",
    ),
)
RATE = (("lr=0.05", "lr=0.025 * self.world"),)


@pytest.mark.parametrize(
    ("edits", "words"),
    [
        pytest.param(TWICE, "loss of step 1", id="a loss times ranks"),
        pytest.param(ADDED, "gradient norm of step 1", id="gradients added up", marks=pytest.mark.matrix),
        pytest.param(
            RATE, "learning rate of step 1: 0.05 and 0.025", id="a rate times ranks", marks=pytest.mark.matrix
        ),
    ],
)
def test_what_several_ranks_compute_otherwise_than_one_fails(
    edits: tuple[tuple[str, str], ...], words: str, tmp_path: Path
) -> None:
    verdict = prove(Parity(), bench_for(tmp_path, trainer(*WITHOUT_DROPOUT, *edits)))
    assert verdict.status == "fail", verdict
    assert words in verdict.reason


EACH = (
    ("tokens.chunk(self.world)[self.rank]", "tokens"),
    ("manual_seed(1000 + self.done)", "manual_seed(1000 * self.rank + self.done)"),
)
NOISE = (("x = self.table(tokens)", "x = self.table(tokens)\n        x = x + 0.1 * torch.randn_like(x)"),)
NORM = (
    ("nn.LayerNorm(width), nn.Linear", "Norm(width), nn.Linear"),
    (
        "class Layer(",
        "class Norm(nn.BatchNorm1d):\n    def forward(self, x):\n"
        "        return super().forward(x.transpose(1, 2)).transpose(1, 2)\n\n\nclass Layer(",
    ),
)


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("edits", "words"),
    [
        (EACH, "its global batch changes with the ranks: 16 and 8 samples a step"),
        (NOISE, "its forward draws random numbers"),
        (NORM, "it normalises over the part of the batch that a rank has"),
    ],
    ids=["a batch a rank", "noise", "batch norm"],
)
def test_what_depends_on_the_ranks_by_nature_is_not_compared(
    edits: tuple[tuple[str, str], ...], words: str, tmp_path: Path
) -> None:
    bench = bench_for(tmp_path, trainer(*WITHOUT_DROPOUT, *edits), to_nproc=1)
    parity, reshard = prove(Parity(), bench), prove(Reshard(), bench)
    assert (parity.status, parity.applies, reshard.status) == ("skip", False, "pass"), (parity, reshard)
    assert words in parity.reason
    assert "losses cannot be compared" in reshard.reason
    assert reshard.figures["targets"][0]["tensors_that_differ"] == []
