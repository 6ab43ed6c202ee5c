"""The proof `export`: a file that holds the weights passes, and one that holds others, or fewer, fails."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from pytorch_fsdp2_dcp.templates.options import answer
from pytorch_fsdp2_dcp.templates.render import render
from pytorch_fsdp2_dcp.validate import header
from pytorch_fsdp2_dcp.validate.conversion.entries import open_source
from pytorch_fsdp2_dcp.validate.fingerprint import fingerprint
from pytorch_fsdp2_dcp.validate.probe.whole import Whole, WholeState
from pytorch_fsdp2_dcp.validate.proofs.base import Verdict
from pytorch_fsdp2_dcp.validate.proofs.export import Export
from pytorch_fsdp2_dcp.validate.proofs.exported import Examined, examine, find, models

from .topologies import WITHOUT_DROPOUT, bench_for, prove, trainer

TEXT = Path(__file__).resolve().parents[1] / "fixtures" / "text.md"

WEIGHTS = {"table.weight": torch.arange(12.0).reshape(4, 3), "bias": torch.ones(3)}


def of(tensor: torch.Tensor) -> int:
    data = tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
    return fingerprint(
        data, tensor.element_size(), sizes=tensor.shape, offsets=(0,) * tensor.dim(), shape=tensor.shape
    )  # fmt: skip


def whole(tensor: torch.Tensor) -> Whole:
    casts = {"bfloat16": of(tensor.bfloat16()), "float16": of(tensor.half())}
    return Whole(dtype="float32", shape=tuple(tensor.shape), sums=frozenset({of(tensor)}), casts=casts)


IN_MEMORY = WholeState(
    tensors={
        "parameters": {name: whole(tensor) for name, tensor in WEIGHTS.items()},
        "optimizer state": {},
        "buffers": {"seen": whole(torch.zeros(()))},
    },
    others={},
    names={"table.weight": ((0, "table.weight"), (0, "head.weight")), "bias": ((0, "bias"),)},
)
FILE = {**WEIGHTS, "head.weight": WEIGHTS["table.weight"], "seen": torch.zeros(())}


def examined(tmp_path: Path, value: object, *, dtype: str | None = None, every_name: bool = True) -> Examined | None:
    torch.save(value, tmp_path / "weights.pt")
    source = open_source(str(tmp_path / "weights.pt"))
    held = find(source, models(IN_MEMORY))
    return None if held is None else examine(source, *held, dtype=dtype, every_name=every_name)


@pytest.mark.parametrize("names", [("average", "model"), ("model", "average")])
def test_the_weights_are_told_from_their_average_beside_them(names: tuple[str, str], tmp_path: Path) -> None:
    values = {"model": FILE, "average": {name: tensor + 0.5 for name, tensor in FILE.items()}}
    value = {f"{which}.{name}": tensor for which in names for name, tensor in values[which].items()}
    assert examined(tmp_path, value) == Examined("model.", compared=4)
    value["model.bias"] = torch.zeros(3)
    result = examined(tmp_path, value)
    assert result is not None
    assert (result.prefix, result.problems) == ("model.", ["`bias` has other values"])


def test_a_file_that_holds_the_weights_has_no_problem(tmp_path: Path) -> None:
    result = examined(tmp_path, FILE, dtype="float32")
    assert result == Examined("", compared=4)


@pytest.mark.parametrize("prefix", ["model", "state.module"])
def test_weights_are_found_below_a_prefix_and_under_names_of_wrappers(prefix: str, tmp_path: Path) -> None:
    value = {f"{prefix}.{name.replace('table', '_orig_mod.table')}": tensor for name, tensor in FILE.items()}
    result = examined(tmp_path, {**value, "step": torch.tensor(3)})
    assert result == Examined(f"{prefix}.", compared=4)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"head.weight": None}, "it lacks `head.weight`, which is tied to `table.weight`"),
        ({"bias": None}, "it lacks `bias`"),
        ({"bias": torch.ones(3) + 1e-6}, "`bias` has other values"),
        ({"head.weight": FILE["table.weight"].flip(0)}, "`head.weight` has other values"),
        ({"bias": torch.ones(4)}, "`bias` is [4] in it and [3] in memory"),
        ({"bias": torch.ones(3).bfloat16()}, "`bias` is bfloat16 in it; expected float32"),
    ],
)
def test_what_is_not_in_memory_is_named(change: dict[str, torch.Tensor | None], problem: str, tmp_path: Path) -> None:
    value = {name: tensor for name, tensor in {**FILE, **change}.items() if tensor is not None}
    result = examined(tmp_path, value, dtype="float32")
    assert result is not None
    assert result.problems == [problem]


def test_one_name_of_a_tie_is_enough_where_a_format_keeps_one(tmp_path: Path) -> None:
    value = {name: tensor for name, tensor in FILE.items() if name != "head.weight"}
    assert examined(tmp_path, value, every_name=False) == Examined("", compared=3)


def test_a_cast_of_all_is_told(tmp_path: Path) -> None:
    result = examined(tmp_path, {name: tensor.bfloat16() for name, tensor in FILE.items()})
    assert result == Examined("", compared=4, casts={"bfloat16"})


def test_a_file_of_other_things_is_none_of_the_model(tmp_path: Path) -> None:
    assert examined(tmp_path, {"bias": torch.ones(3), "step": torch.tensor(1), "loss": torch.zeros(2)}) is None


def proved(tmp_path: Path, *edits: tuple[str, str]) -> Verdict:
    return prove(Export(), bench_for(tmp_path, trainer(*WITHOUT_DROPOUT, *edits)))


@pytest.mark.slow
def test_a_script_that_saves_its_weights_in_one_file_passes(tmp_path: Path) -> None:
    verdict = proved(tmp_path)
    assert verdict.status == "pass", verdict
    assert verdict.figures == {
        "file": {"tensors": 11, "casts": [], "problems": []},
        "converted": {"tensors": 11, "casts": [], "problems": []},
    }


SAVE = 'torch.save(weights, self.root / "net.pt")'
BF16 = "{k: v.bfloat16() if v.is_floating_point() else v for k, v in weights.items()}"
STALE = (
    ('"net": get_model_state_dict(self.net)', '"net": getattr(self, "old", None) or get_model_state_dict(self.net)'),
    ("        self.opt.step()\n", "        self.old = {k: v.clone() for k, v in weights()}\n        self.opt.step()\n"),
    ("        tokens = self.draw()\n", "        tokens, weights = self.draw(), get_model_state_dict(self.net).items\n"),
)
UNTIED = ((SAVE, f'weights.pop("out.weight"); {SAVE}'),)
MOVED = ((SAVE, f'weights["layers.1.mix.bias"] += 1; {SAVE}'),)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("edits", "words"),
    [
        (UNTIED, "net.pt is not what was in memory: it lacks `out.weight`, which is tied to `table.weight`"),
        pytest.param(MOVED, "`layers.1.mix.bias` has other values", marks=pytest.mark.matrix),
        pytest.param(STALE, "converted is not what was in memory: `table.weight` has other", marks=pytest.mark.matrix),
    ],
    ids=["a tie", "a bias", "a stale checkpoint"],
)
def test_a_file_or_a_checkpoint_of_other_weights_fails(
    edits: tuple[tuple[str, str], ...], words: str, tmp_path: Path
) -> None:
    verdict = proved(tmp_path, *edits)
    assert verdict.status == "fail", verdict
    assert words in verdict.reason


@pytest.mark.slow
@pytest.mark.matrix
@pytest.mark.parametrize(
    ("saved", "words"),
    [
        (BF16, "net.pt: 11 tensors equal bit for bit what was in memory, cast to bfloat16"),
        ("{k: v * 0.5 for k, v in weights.items()}", "net.pt holds other values under the model's names"),
        ("{'table.weight': weights['table.weight']}", "it writes no file that was seen to come from the trained model"),
    ],
    ids=["a cast", "an average", "a part"],
)
def test_a_file_that_need_not_be_the_weights_is_not_held_against_a_script(
    saved: str, words: str, tmp_path: Path
) -> None:
    verdict = proved(tmp_path, (SAVE, SAVE.replace("weights", saved, 1)))
    assert verdict.status == "pass", verdict
    assert words in verdict.reason


KEPT = "weights[name] = gathered"
CAST = "DTYPES[args.export_dtype])"
READ = "gather(tensors[name]"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("export", "old", "new", "words"),
    [
        ("pt", KEPT, KEPT, "weights.pt: 15 tensors equal bit for bit what was in memory"),
        pytest.param(
            "pt", KEPT, KEPT.replace("name", "name.replace('head.', 'top.')"), "it lacks `head.weight`",
            marks=pytest.mark.matrix,
        ),
        pytest.param(
            "pt", CAST, "torch.bfloat16)", "`embed.weight` is bfloat16 in it; expected float32",
            marks=pytest.mark.matrix,
        ),
        pytest.param(
            "safetensors", READ, f"{READ} * 1.001", "weights.safetensors is not what was in memory: `embed.weight` has",
            marks=pytest.mark.matrix,
        ),
    ],
    ids=["right", "a tie", "a cast", "other values"],
)  # fmt: skip
def test_a_generated_script_is_asked_for_its_file(export: str, old: str, new: str, words: str, tmp_path: Path) -> None:
    text = render(answer({"export": export}))
    assert old in text
    carried = header.parse(text)
    assert carried is not None
    shutil.copy(TEXT, tmp_path / "text.md")
    args = (*carried.proof_args, "--data", str(tmp_path / "text.md"))
    bench = bench_for(
        tmp_path, text.replace(old, new), args=args, header=carried, checkpoint_arg=carried.checkpoint_arg
    )  # fmt: skip
    verdict = prove(Export(), bench)
    assert verdict.status == ("pass" if old == new else "fail"), verdict
    assert words in verdict.reason
