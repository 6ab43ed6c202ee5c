"""Puts the page together from the document that `--format json` prints."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import jinja2

from ..report import Lines, plural, shortened
from . import losses, ownership, timeline

MARKS = {"pass": "✓", "fail": "✗", "skip": "–"}


def render(document: dict[str, Any]) -> str:
    """The page. Source lines of findings are read from their files, as far as these are there."""
    proofs = document["proofs"]
    lines = Lines()
    run = document["run"] or {"losses": [], "steps": [], "saves": [], "ownership": []}
    resume: dict[str, Any] = next((proof["figures"] for proof in proofs if proof["name"] == "resume"), {})
    return _environment().get_template("page.html.jinja").render(
        document=document,
        title=Path(document["script"]).name,
        marks=MARKS,
        count={status: sum(proof["status"] == status for proof in proofs) for status in MARKS},
        line_of=lambda file, line: shortened(lines(file, line)),
        losses=losses,
        chart=losses.loss_chart(run["losses"], resume.get("losses"), resume.get("stopped_after_step")),
        resume=resume,
        timeline=timeline,
        drawing=timeline.timeline(run),
        saves=timeline.rows(run),
        ownership=run["ownership"],
        groups=ownership.groups(run["ownership"]),
        total=functools.partial(ownership.total, run["ownership"]),
        heads=ownership.heads(document["nproc"]),
        cells=ownership.cells,
        figures=_figures,
        plural=plural,
    )  # fmt: skip


def _environment() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_clean,
    )


def _clean(value: Any) -> Any:
    """Text without the characters that HTML must not hold, whatever an exception or a file's name is made of."""
    if type(value) is not str:
        return value
    return "".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in value)


def _figures(proof: dict[str, Any]) -> str:
    """The figures of a proof that are shown nowhere else."""
    shown = {key: value for key, value in proof["figures"].items() if key not in ("losses", "stacks")}
    return json.dumps(shown, indent=2, ensure_ascii=False) if shown else ""
