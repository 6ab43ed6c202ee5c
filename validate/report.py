"""Findings as people and programs read them; shared by the verbs `lint` and `validate`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import UserError
from .findings import Finding, Severity
from .sources import decode

if TYPE_CHECKING:
    from .fixing import Fix

TEXT_LIMIT = 50  # findings shown as text; an agent's context is finite, and JSON has them all
LINE_LIMIT = 200  # characters of a source line


class Lines:
    """The lines of source files, each file read once. `texts` are those at hand, such as that of standard input."""

    def __init__(self, texts: Mapping[str, str] | None = None) -> None:
        self._lines = {file: _split(text) for file, text in (texts or {}).items()}

    def __call__(self, file: str, line: int) -> str:
        """The text of a line, counted from 1; empty where there is none."""
        if file not in self._lines:
            try:
                self._lines[file] = _split(decode(file, Path(file).read_bytes()))
            except (OSError, ValueError, UserError):  # gone since, or never was a file of text
                self._lines[file] = []
        lines = self._lines[file]
        return lines[line - 1] if 0 < line <= len(lines) else ""


def page(code: str, name: str) -> str:
    """A rule's page, relative to the skill's folder."""
    return f"references/rules/{code}-{name}/page.md"


def printable(text: str) -> str:
    """`text` on one line, such as the name of a file, which may hold any character but `/` and NUL."""
    return text if text.isprintable() else text.encode("unicode_escape", "surrogatepass").decode()


def as_json(finding: Finding, fix: Fix | None = None) -> dict[str, Any]:
    """A finding as the command contract lays it down; `fix` is what would mend it mechanically."""
    return {
        "code": finding.code,
        "name": finding.name,
        "severity": finding.severity.value,
        "file": finding.at.file,
        "line": finding.at.line,
        "column": finding.at.column,
        "message": finding.message,
        "clause": finding.clause,
        "page": page(finding.code, finding.name),
        "related": [{"file": at.file, "line": at.line, "message": word} for at, word in finding.related],
        "ranks": list(finding.ranks),
        "fix": None if fix is None else _fix_as_json(fix),
    }


def _fix_as_json(fix: Fix) -> dict[str, Any]:
    """Whole lines (from 1) of the finding's file, `end_line` not included, are replaced by `content`."""
    edits = [{"line": e.first + 1, "end_line": e.last + 1, "content": "".join(e.lines)} for e in fix.edits]
    return {"message": fix.message, "applicability": fix.applicability, "edits": edits}


def fixed_as_json(fix: Fix) -> dict[str, Any]:
    """A finding that is no more; `line` is where it was."""
    found = fix.finding
    return {
        "code": found.code,
        "name": found.name,
        "file": found.at.file,
        "line": found.at.line,
        "message": fix.message,
        "applicability": fix.applicability,
    }


def fixed_as_text(fixes: Sequence[Fix]) -> list[str]:
    """The findings that are no more, a line each."""
    lines = [
        f"fixed {printable(fix.finding.at.file)}: {fix.finding.code} ({fix.applicability}): {fix.message}"
        for fix in fixes[:TEXT_LIMIT]
    ]
    return lines + ([f"... and {len(fixes) - TEXT_LIMIT} more fixed"] if len(fixes) > TEXT_LIMIT else [])


def as_text(findings: Sequence[Finding], line_of: Callable[[str, int], str] | None = None) -> list[str]:
    """The findings as lines: place, code and message, then the source line and the other places involved.

    `line_of` gives a line of a file; without it, files are read.
    """
    line_of = line_of or Lines()
    lines: list[str] = []
    for finding in findings[:TEXT_LIMIT]:
        at = finding.at
        ranks = f" (rank {', '.join(map(str, finding.ranks))})" if finding.ranks else ""
        lines.append(
            f"{printable(at.file)}:{at.line}:{at.column}: {finding.code} {finding.severity.value}: {finding.message} "
            f"[{finding.name}]{ranks}"
        )
        if source := shortened(line_of(at.file, at.line)):
            lines.append(f"    {at.line} | {source}")
        lines += [f"    {printable(str(place))}: {word}" for place, word in finding.related]
    if len(findings) > TEXT_LIMIT:
        lines.append(f"... and {len(findings) - TEXT_LIMIT} more; --format json has them all")
    return lines


def shortened(line: str) -> str:
    """A source line without its indentation, and without its end where it is too long to be read."""
    text = line.strip()
    return text if len(text) <= LINE_LIMIT else text[:LINE_LIMIT] + " ..."


def count(findings: Iterable[Finding]) -> str:
    """`2 errors, 1 warning`, or `nothing found`."""
    counted = Counter(f.severity for f in findings)
    words = {Severity.ERROR: "error", Severity.WARN: "warning", Severity.INFO: "note"}
    parts = [plural(counted[severity], word) for severity, word in words.items() if counted[severity]]
    return ", ".join(parts) or "nothing found"


def plural(number: int, noun: str) -> str:
    """`1 file`, `2 files`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _split(text: str) -> list[str]:
    return re.split(r"\r\n|\r|\n", text)  # as Python counts lines; `splitlines` knows more ends of line
