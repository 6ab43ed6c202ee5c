"""Runs a recipe as it stands, on a few ranks, in a working directory of its own."""

from __future__ import annotations

import re
from pathlib import Path

from pytorch_fsdp2_dcp.validate.launch import launcher
from pytorch_fsdp2_dcp.validate.launch.job import Job, Run

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
