"""Runs a recipe as it stands, on a few ranks, in a working directory of its own."""

from __future__ import annotations

import re
from pathlib import Path

from pytorch_fsdp2_dcp.validate.errors import UserError
from pytorch_fsdp2_dcp.validate.launch import launcher
from pytorch_fsdp2_dcp.validate.launch.job import Job, Run
from pytorch_fsdp2_dcp.validate.proofs import PROOFS
from pytorch_fsdp2_dcp.validate.proofs.base import Verdict
from pytorch_fsdp2_dcp.validate.proofs.bench import Bench, Subject

RECIPES = Path(__file__).resolve().parents[2] / "recipes"
TEXT = Path(__file__).resolve().parents[1] / "fixtures" / "text.md"
TRAINING = ("--data", str(TEXT), "--batch", "4")


def run(recipe: str, place: Path, ranks: int, *args: str, **env: str) -> Run:
    """The finished run, in which every rank exits with 0; `place` is made, and may be used by several."""
    work, scratch = place / "work", place / f"scratch-{len(list(place.glob('*')))}"
    work.mkdir(parents=True, exist_ok=True)
    scratch.mkdir()
    job = Job(script=RECIPES / recipe, args=args, nproc=ranks, cwd=work, scratch=scratch, deadline=180, env=env)
    finished = launcher("warm").run(job)
    assert finished.succeeded, [(end.code, end.output) for end in finished.ends]
    return finished


def losses(finished: Run) -> list[float]:
    """Those that rank 0 prints, in order."""
    return [float(loss) for loss in re.findall(r"loss (\d+\.\d+)$", finished.ends[0].output, re.MULTILINE)]


def proved(recipe: str, place: Path, ranks: int, *args: str) -> dict[str, Verdict]:
    """What came of each proof that says something of the recipe, by name. None of them failed."""
    checkpoints = "--checkpoint-dir" in (RECIPES / recipe).read_text()
    place.mkdir(exist_ok=True)
    (place / "runs").mkdir()
    subject = Subject(
        script=RECIPES / recipe,
        args=args,
        nproc=ranks,
        cwd=place,
        checkpoint_arg="--checkpoint-dir" if checkpoints else None,
        stop_after=None,
        timeout=240,
    )
    bench = Bench(subject, launcher("warm"), place / "runs")
    verdicts: dict[str, Verdict] = {}
    for proof in PROOFS:
        try:
            verdicts[proof.name] = proof.prove(bench)
        except UserError:  # nothing to be said: it saves nothing, or does not run on one rank
            continue
        assert verdicts[proof.name].status == "pass", verdicts[proof.name]
    return verdicts
