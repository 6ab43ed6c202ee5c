"""Checklists as people and programs read them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from ..report import printable
from .verdicts import Status, Verdict, Workflow

_MARKS = {Status.DONE: "x", Status.MISSING: " ", Status.BROKEN: "!", Status.NOT_SEEN: "?"}
_WIDTH = 110  # characters of an item's text


def as_text(file: str, workflow: Workflow, verdicts: Sequence[Verdict]) -> list[str]:
    """A heading with the count of each verdict, then two lines an item."""
    counted = Counter(v.status for v in verdicts)
    counts = ", ".join(f"{counted[status]} {_word(status)}" for status in Status if counted[status])
    lines = [f"Workflow {workflow.letter.upper()}, {workflow.title}: {printable(file)}: {counts}"]
    for number, (item, verdict) in enumerate(zip(workflow.items, verdicts, strict=True), 1):
        text = item.text if len(item.text) <= _WIDTH else item.text[:_WIDTH].rpartition(" ")[0] + " ..."
        lines += [f"[{_MARKS[verdict.status]}] {number:2}. {text}", f"        {_told(verdict)}"]
    return lines


def as_json(file: str, workflow: Workflow, verdicts: Sequence[Verdict]) -> list[dict[str, Any]]:
    """An object an item; `file` is the program's, `at` may lie in a module of it."""
    return [
        {
            "workflow": workflow.letter,
            "file": file,
            "item": number,
            "text": item.text,
            "status": verdict.status.value,
            "at": {"file": verdict.at.file, "line": verdict.at.line} if verdict.at is not None else None,
            "rules": sorted({f.code for f in verdict.broken}),
            "note": verdict.note,
        }
        for number, (item, verdict) in enumerate(zip(workflow.items, verdicts, strict=True), 1)
    ]


def _told(verdict: Verdict) -> str:
    if verdict.broken:
        found = list(dict.fromkeys(f"{f.code} at {printable(str(f.at))}" for f in verdict.broken))
        more = f" and {len(found) - 5} more" if len(found) > 5 else ""
        return f"broken: {', '.join(found[:5])}{more}"
    parts = [printable(str(verdict.at))] if verdict.at is not None else []
    parts += [verdict.note] if verdict.note else []
    return f"{_word(verdict.status)}{': ' if parts else ''}{': '.join(parts)}"


def _word(status: Status) -> str:
    return status.value.replace("-", " ")
