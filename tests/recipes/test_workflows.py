"""The recipes of both workflows: what is retrofitted computes what it did, and what has checkpoints resumes exactly."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
import torch
from pytorch_fsdp2_dcp.validate.reader import read
from pytorch_fsdp2_dcp.validate.rules import judge

from .running import RECIPES, TRAINING, losses, proved, run

SHARED = {"gpt.py", "lora.py", "sharded.py", "resumable.py"}


def lint(recipe: str) -> list[str]:
    return [finding.code for finding in judge(read(RECIPES / recipe).traces)]


@pytest.mark.parametrize("recipe", sorted(path.name for path in RECIPES.glob("*.py")))
def test_the_linter_finds_in_a_recipe_what_it_is_to_show(recipe: str) -> None:
    assert lint(recipe) == (["FS601"] if recipe == "b_before.py" else [])


def test_the_list_of_recipes_names_each_and_no_other() -> None:
    named = set(re.findall(r"`(\w+\.py)`", (RECIPES / "README.md").read_text()))
    assert named == {path.name for path in RECIPES.glob("*.py")} - {"lora.py"}


@pytest.mark.parametrize("recipe", sorted({path.name for path in RECIPES.glob("*.py")} - SHARED))
def test_the_first_lines_of_a_recipe_tell_how_it_is_started(recipe: str) -> None:
    said = ast.get_docstring(ast.parse((RECIPES / recipe).read_text()))
    assert said is not None
    assert f" {recipe}" in said or recipe == "demo.py"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("start", "ranks"),
    [("one_process", 1), *(pytest.param(start, 2, marks=pytest.mark.matrix) for start in ("ddp", "fsdp1"))],
)
def test_what_is_sharded_computes_the_losses_that_it_did_before(start: str, ranks: int, tmp_path: Path) -> None:
    before = losses(run(f"a_{start}_before.py", tmp_path / "before", ranks, *TRAINING))
    sharded = "a_one_process_after.py" if start == "one_process" else "a_wrapped_after.py"
    after = losses(run(sharded, tmp_path / "after", 2, *TRAINING))
    assert len(before) > 3
    assert before[-1] < before[0]
    assert after == pytest.approx(before, abs=2e-5)
    if start != "one_process":
        old, new = (torch.load(tmp_path / name / "work" / "model.pt") for name in ("before", "after"))
        assert_close(old, new)


@pytest.mark.matrix
@pytest.mark.slow
def test_adapters_are_trained_and_written_alone_and_as_they_were_before(tmp_path: Path) -> None:
    run("b_blocking.py", tmp_path / "base", 2, *TRAINING)
    (newest,) = (tmp_path / "base" / "work" / "checkpoints").glob("step-*13")
    base = tmp_path / "base.pt"
    run("export.py", tmp_path / "base", 2, str(newest), "--out", str(base))
    before = run("a_lora_before.py", tmp_path / "before", 1, str(base), *TRAINING)
    after = run("a_lora_after.py", tmp_path / "after", 2, str(base), *TRAINING)
    assert losses(before)[-1] < losses(before)[0]
    assert losses(after) == pytest.approx(losses(before), abs=2e-5)
    old, new = (torch.load(tmp_path / name / "work" / "adapters.pt") for name in ("before", "after"))
    assert {name.rpartition(".")[0].rpartition(".")[2] for name in new} == {"up", "down"}
    assert_close(old, new)
    assert {"trace", "parity"} <= set(proved("a_lora_after.py", tmp_path / "proofs", 2, str(base), *TRAINING))


@pytest.mark.slow
@pytest.mark.matrix
def test_a_tied_model_of_transformers_is_tuned_and_written_as_it_was_before(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128, tie_word_embeddings=True,
    )  # fmt: skip
    folder = tmp_path / "model"
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    before = run("a_hf_before.py", tmp_path / "before", 1, str(folder), *TRAINING)
    after = run("a_hf_after.py", tmp_path / "after", 2, str(folder), *TRAINING)
    assert losses(before)[-1] < losses(before)[0]
    assert losses(after) == pytest.approx(losses(before), abs=2e-5)
    from safetensors.torch import load_file

    old, new = (load_file(tmp_path / name / "work" / "tuned" / "model.safetensors") for name in ("before", "after"))
    assert_close(old, new)
    assert {"trace", "parity"} <= set(proved("a_hf_after.py", tmp_path / "proofs", 2, str(folder), *TRAINING))


def assert_close(old: dict[str, torch.Tensor], new: dict[str, torch.Tensor]) -> None:
    """The same names, with values that are equal up to the rounding of some steps."""
    assert old.keys() == new.keys()
    for name in old:
        torch.testing.assert_close(new[name], old[name], atol=1e-4, rtol=0)


SAVED = {"trace", "parity", "resume", "reshard", "crash", "export"}


@pytest.mark.matrix
@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "ranks", "proofs"),
    [
        ("a_one_process_after.py", 2, {"trace", "parity"}),
        ("a_wrapped_after.py", 2, {"trace", "parity", "export"}),
        ("b_blocking.py", 2, SAVED),
        ("b_asynchronous.py", 2, SAVED | {"async"}),
        ("tensor_parallel.py", 4, SAVED - {"parity"}),  # its mesh is of four ranks
    ],
)
def test_a_recipe_passes_every_proof_that_says_something_of_it(
    recipe: str, ranks: int, proofs: set[str], tmp_path: Path
) -> None:
    saving = ("--epochs", "2", "--checkpoint-interval", "5") if "crash" in proofs else ()
    assert set(proved(recipe, tmp_path, ranks, *TRAINING, *saving)) == proofs
