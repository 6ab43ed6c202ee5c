"""The recipes of both workflows: what is retrofitted computes what it did, and what has checkpoints resumes exactly."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pytorch_fsdp2_dcp.validate.launch import launcher
from pytorch_fsdp2_dcp.validate.launch.job import Job, Run
from pytorch_fsdp2_dcp.validate.proofs.bench import Bench, Subject
from pytorch_fsdp2_dcp.validate.proofs.resume import Resume
from pytorch_fsdp2_dcp.validate.proofs.trace import RulesHold
from pytorch_fsdp2_dcp.validate.reader import read
from pytorch_fsdp2_dcp.validate.rules import judge

RECIPES = Path(__file__).resolve().parents[2] / "recipes"
TEXT = Path(__file__).resolve().parents[1] / "fixtures" / "text.md"
WITH_CHECKPOINTS = ["b_blocking.py", "b_asynchronous.py"]


def lint(recipe: str) -> list[str]:
    return [finding.code for finding in judge(read(RECIPES / recipe).traces)]


def run(recipe: str, place: Path, ranks: int) -> Run:
    work, scratch = place / "work", place / "scratch"
    for folder in (place, work, scratch):
        folder.mkdir()
    job = Job(
        script=RECIPES / recipe,
        args=("--data", str(TEXT), "--batch", "4"),
        nproc=ranks,
        cwd=work,
        scratch=scratch,
        deadline=120,
    )
    finished = launcher("warm").run(job)
    assert finished.succeeded, finished.ends
    return finished


def losses(finished: Run) -> list[float]:
    return [float(loss) for loss in re.findall(r"loss (\d+\.\d+)$", finished.ends[0].output, re.MULTILINE)]


@pytest.mark.parametrize("recipe", sorted(path.name for path in RECIPES.glob("[ab]_*.py")))
def test_the_linter_finds_in_a_recipe_what_it_is_to_show(recipe: str) -> None:
    assert lint(recipe) == (["FS601"] if recipe == "b_before.py" else [])


@pytest.mark.slow
@pytest.mark.parametrize(("start", "ranks"), [("one_process", 1), ("ddp", 2)])
def test_what_is_sharded_computes_the_losses_that_it_did_before(start: str, ranks: int, tmp_path: Path) -> None:
    before = losses(run(f"a_{start}_before.py", tmp_path / "before", ranks))
    after = losses(run(f"a_{start}_after.py", tmp_path / "after", 2))
    assert len(before) > 3
    assert before[-1] < before[0]
    assert after == pytest.approx(before, abs=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("recipe", WITH_CHECKPOINTS)
def test_a_recipe_with_checkpoints_keeps_the_rules_and_resumes_exactly(recipe: str, tmp_path: Path) -> None:
    subject = Subject(
        script=RECIPES / recipe,
        args=("--data", str(TEXT), "--batch", "4", "--epochs", "2", "--checkpoint-interval", "5"),
        nproc=2,
        cwd=tmp_path,
        checkpoint_arg="--checkpoint-dir",
        stop_after=None,
        timeout=120,
    )
    (tmp_path / "runs").mkdir()
    bench = Bench(subject, launcher("warm"), tmp_path / "runs")
    for proof in (RulesHold(), Resume()):
        verdict = proof.prove(bench)
        assert verdict.status == "pass", verdict
    assert verdict.figures["steps_after_resuming"] > 3
