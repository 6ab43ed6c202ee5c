"""Findings as people and programs read them; shared by the verbs `lint` and `validate`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from .findings import Finding, Severity

TEXT_LIMIT = 50  # findings shown as text; an agent's context is finite, and JSON has them all


def page(finding: Finding) -> str:
    """The rule's page, relative to the skill's folder."""
    return f"references/rules/{finding.code}-{finding.name}/page.md"


def as_json(finding: Finding) -> dict[str, Any]:
    """A finding as the command contract lays it down."""
    return {
        "code": finding.code,
        "name": finding.name,
        "severity": finding.severity.value,
        "file": finding.at.file,
        "line": finding.at.line,
        "column": finding.at.column,
        "message": finding.message,
        "clause": finding.clause,
        "page": page(finding),
        "related": [{"file": at.file, "line": at.line, "message": word} for at, word in finding.related],
        "ranks": list(finding.ranks),
        "fix": None,
    }


def as_text(findings: Sequence[Finding]) -> list[str]:
    """The findings as lines: place, code and message, then the source line and the other places involved."""
    lines: list[str] = []
    for finding in findings[:TEXT_LIMIT]:
        at = finding.at
        ranks = f" (rank {', '.join(map(str, finding.ranks))})" if finding.ranks else ""
        lines.append(
            f"{at.file}:{at.line}:{at.column}: {finding.code} {finding.severity.value}: {finding.message} "
            f"[{finding.name}]{ranks}"
        )
        if source := _source_line(at.file, at.line):
            lines.append(f"    {at.line} | {source}")
        lines += [f"    {place}: {word}" for place, word in finding.related]
    if len(findings) > TEXT_LIMIT:
        lines.append(f"... and {len(findings) - TEXT_LIMIT} more; --format json has them all")
    return lines


def count(findings: Iterable[Finding]) -> str:
    """`2 errors, 1 warning`, or `nothing found`."""
    counted = Counter(f.severity for f in findings)
    words = {Severity.ERROR: "error", Severity.WARN: "warning", Severity.INFO: "note"}
    parts = [plural(counted[severity], word) for severity, word in words.items() if counted[severity]]
    return ", ".join(parts) or "nothing found"


def plural(number: int, noun: str) -> str:
    """`1 file`, `2 files`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _source_line(file: str, line: int) -> str:
    try:
        lines = Path(file).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # read from standard input, or gone since
        return ""
    return lines[line - 1].strip() if 0 < line <= len(lines) else ""
