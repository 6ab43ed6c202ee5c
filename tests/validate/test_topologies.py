"""The proofs `parity` and `reshard`: a right script passes them, and fails with one mistake at a time."""

from __future__ import annotations

from pathlib import Path

import pytest
from pytorch_fsdp2_dcp.templates.options import answer
from pytorch_fsdp2_dcp.templates.render import render
from pytorch_fsdp2_dcp.validate import header
from pytorch_fsdp2_dcp.validate.errors import UserError
from pytorch_fsdp2_dcp.validate.proofs.bench import Bench
from pytorch_fsdp2_dcp.validate.proofs.parity import Parity
from pytorch_fsdp2_dcp.validate.proofs.reshard import Reshard
from pytorch_fsdp2_dcp.validate.proofs.topology import on, targets

from .topologies import WITHOUT_DROPOUT, bench_for, prove, trainer

TEXT = Path(__file__).resolve().parents[1] / "fixtures" / "text.md"


@pytest.mark.slow
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


AVERAGE = (
    (
        "        self.done = 0\n",
        "        self.done = 0\n"
        "        self.average = {k: p.detach().clone() for k, p in self.net.named_parameters()}\n",
    ),
    ('            "done":', '            "average": self.average,\n            "done":'),
    (
        "        self.decay.step()\n",
        "        self.decay.step()\n        for k, p in self.net.named_parameters():\n"
        "            self.average[k].lerp_(p.detach(), 0.1)\n",
    ),
)
AVERAGE_ANEW = (
    (
        '        self.done = int(state["done"])',
        "        if self.world != 2:\n            for k, p in self.net.named_parameters():\n"
        '                self.average[k].copy_(p.detach())\n        self.done = int(state["done"])',
    ),
)


@pytest.mark.slow
def test_a_sharded_average_goes_to_other_ranks_too(tmp_path: Path) -> None:
    verdict = prove(Reshard(), bench_for(tmp_path, trainer(*WITHOUT_DROPOUT, *AVERAGE), to_nproc=1))
    assert verdict.status == "pass", verdict
    assert verdict.figures["targets"][0]["tensors"] == 37 + 9


@pytest.mark.slow
@pytest.mark.parametrize(
    ("edits", "ranks", "words"),
    [
        pytest.param(MULTIPLIED, 1, "it takes", id="a count of steps times ranks"),
        pytest.param(BY_RANK, 4, "it cannot continue, though it runs there from scratch: ", id="a key a rank"),
        pytest.param(AFRESH, 1, "of 37 tensors, `table.weight.step` (optimizer", id="optimizer state lost"),
        pytest.param(
            (*AVERAGE, *AVERAGE_ANEW), 1, "of 46 tensors, `self.average[0]` (weights beside) has other", id="an average"
        ),
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


@pytest.mark.slow
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
@pytest.mark.slow
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


def generated(tmp_path: Path, mesh: str, edit: str = "", **subject: object) -> Bench:
    text = render(answer({"mesh": mesh}))
    carried = header.parse(text)
    assert carried is not None
    args = (*carried.proof_args, "--data", str(TEXT))
    return bench_for(
        tmp_path, text + edit, **{"args": args, "header": carried, "checkpoint_arg": carried.checkpoint_arg, **subject}
    )  # fmt: skip


@pytest.mark.parametrize(
    ("mesh", "ranks", "to", "told"),
    [
        ("dp_shard=-1", 2, 4, "4 ranks (dp_shard=4)"),
        ("dp_replicate=2,dp_shard=-1", 4, 2, "2 ranks (dp_replicate=2,dp_shard=1)"),
        ("dp_replicate=2,dp_shard=-1", 4, 1, "1 rank (dp_shard=1)"),
        ("dp_shard=-1,tp=2", 4, 2, "2 ranks (dp_shard=1,tp=2)"),
        ("dp_shard=-1,tp=2", 2, 3, "3 ranks (dp_shard=3)"),
        ("dp_replicate=2,dp_shard=2,tp=2", 8, 4, "4 ranks (dp_replicate=2,dp_shard=1,tp=2)"),
    ],
)
def test_a_mesh_goes_to_other_ranks_as_far_as_it_divides_them(
    mesh: str, ranks: int, to: int, told: str, tmp_path: Path
) -> None:
    assert str(on(generated(tmp_path, mesh, nproc=ranks).subject, to)) == told


def test_sizes_on_the_command_line_come_before_those_of_the_mesh(tmp_path: Path) -> None:
    bench = generated(tmp_path, "dp_shard=-1,tp=2", nproc=4, args=("--tp", "1"))
    assert str(on(bench.subject, 8)) == "8 ranks (dp_shard=8)"


@pytest.mark.parametrize(
    ("to", "told", "anew"),
    [
        ({"to_mesh": "dp_shard=2,tp=2"}, "4 ranks (dp_shard=2,tp=2)", True),
        ({"to_mesh": "dp_shard=-1"}, "2 ranks (dp_shard=2)", False),
        ({"to_mesh": "dp_shard=-1,tp=2", "to_nproc": 4}, "4 ranks (dp_shard=2,tp=2)", True),
        ({"to_nproc": 6}, "6 ranks (dp_shard=6)", False),
    ],
)
def test_a_mesh_that_a_script_has_no_dims_for_is_generated(
    to: dict[str, object], told: str, anew: bool, tmp_path: Path
) -> None:
    (topology,) = targets(generated(tmp_path, "dp_shard=-1", **to))
    assert (str(topology), topology.script is not None) == (told, anew)


def test_by_default_two_ranks_go_to_one_and_to_four_and_more_to_half(tmp_path: Path) -> None:
    assert [t.nproc for t in targets(bench_for(tmp_path, ""))] == [1, 4]


@pytest.mark.parametrize(
    ("to", "edit", "words"),
    [
        ({"to_mesh": "tp=2"}, "", "--to-mesh tp=2: there is no dp_shard"),
        ({"to_mesh": "dp_shard=3", "to_nproc": 4}, "", "expected sizes that multiply to 4 ranks"),
        ({"to_mesh": "dp_shard=-1,tp=2", "to_nproc": 3}, "", "expected sizes that multiply to 3 ranks"),
        ({"to_mesh": "dp_shard=2,tp=2"}, "# mine\n", "was edited"),
        ({"to_mesh": "dp_shard=2", "header": None}, "", "was not generated"),
    ],
)
def test_a_mesh_that_a_script_cannot_be_given_is_refused(
    to: dict[str, object], edit: str, words: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=words):
        targets(generated(tmp_path, "dp_shard=-1", edit, **to))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mesh", "ranks", "to"),
    [
        ("dp_shard=-1", 2, "dp_shard=1,tp=2"),
        pytest.param("dp_shard=-1", 2, "dp_replicate=2,dp_shard=2", marks=pytest.mark.matrix),
        pytest.param("dp_replicate=2,dp_shard=-1", 4, "dp_shard=2,tp=2", marks=pytest.mark.matrix),
        pytest.param("dp_shard=-1,tp=2", 4, "dp_replicate=2,dp_shard=2", marks=pytest.mark.matrix),
        pytest.param("dp_replicate=2,dp_shard=1,tp=2", 4, "dp_shard=4", marks=pytest.mark.matrix),
    ],
)
def test_a_generated_script_continues_on_another_mesh(mesh: str, ranks: int, to: str, tmp_path: Path) -> None:
    bench = generated(tmp_path, mesh, nproc=ranks, to_mesh=to)
    for proof in (Parity(), Reshard()):
        verdict = prove(proof, bench)
        assert verdict.status == "pass", verdict
    (target,) = verdict.figures["targets"]
    assert (target["tensors"], target["steps_compared"], target["mesh"]) == (56, 4, to)
