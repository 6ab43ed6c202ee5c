"""`# fsdp2: ignore[FS401] reason`: which findings the author of a script has accepted, and which of these are stale."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from .errors import UserError
from .events import Location
from .findings import Finding, Severity
from .rules import RULES
from .sources import decode

UNUSED = ("FS001", "unused-suppression")  # code and name of what is said of a comment that accepts nothing

_COMMENT = re.compile(r"#\s*fsdp2:\s*ignore\b(?:\[(?P<codes>[^\]]*)\])?")


@dataclass
class Suppression:
    """One comment. It covers the whole statement that it stands on, so it may follow the closing bracket of a call.

    `codes` is empty for a comment without brackets, which accepts nothing: what is accepted must be named.
    """

    at: Location
    first_line: int
    last_line: int
    codes: tuple[str, ...]
    used: set[str] = field(default_factory=set)

    def covers(self, finding: Finding) -> bool:
        """Whether the finding is of this statement and of a code that is named."""
        at = finding.at
        return at.file == self.at.file and self.first_line <= at.line <= self.last_line and finding.code in self.codes


def find(file: str, text: str) -> list[Suppression]:
    """The suppressions in a file's comments; those in strings are not comments."""
    if not _COMMENT.search(text):
        return []  # nearly every file, and telling tokens apart takes longer than parsing
    found: list[Suppression] = []
    statement: list[tuple[int, int, tuple[str, ...]]] = []
    first_line: int | None = None
    for token in _tokens(text):
        if token.type == tokenize.COMMENT:
            if match := _COMMENT.search(token.string):
                codes = tuple(code.strip() for code in (match["codes"] or "").split(",") if code.strip())
                statement.append((token.start[0], token.start[1] + match.start() + 1, codes))
        elif token.type not in (tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT):
            first_line = first_line if first_line is not None else token.start[0]
        if token.type == tokenize.NEWLINE or (token.type == tokenize.NL and first_line is None):
            for line, column, codes in statement:
                found.append(Suppression(Location(file, line, column), first_line or line, token.start[0], codes))
            statement, first_line = [], None
    return found


def _tokens(text: str) -> Iterator[tokenize.TokenInfo]:
    try:
        yield from tokenize.generate_tokens(io.StringIO(text, newline=None).readline)
    except (tokenize.TokenError, SyntaxError):
        return  # it refuses a few things that the parser takes; what came before holds


def apply(findings: Iterable[Finding], suppressions: list[Suppression]) -> list[Finding]:
    """The findings that no suppression covers; marks those that cover one as used."""
    left: list[Finding] = []
    for finding in findings:
        covering = [s for s in suppressions if s.covers(finding)]
        for suppression in covering:
            suppression.used.add(finding.code)
        if not covering:
            left.append(finding)
    return left


def beside(findings: Iterable[Finding], folder: Path) -> list[Suppression]:
    """The suppressions in the files that these findings are in, whose names are relative to the folder."""
    files = dict.fromkeys(finding.at.file for finding in findings)
    return [suppression for file in files for suppression in _of(file, folder)]


def _of(file: str, folder: Path) -> list[Suppression]:
    try:
        return find(file, decode(file, (folder / file).read_bytes()))
    except (OSError, UserError):  # code that no file holds
        return []


def stale(suppressions: list[Suppression], judged: frozenset[str]) -> list[Finding]:
    """A finding for each suppression that suppresses nothing (after `apply`).

    `judged` are the codes of the rules that ran: a suppression of another rule of the book may well be of use.
    """
    known = {rule.code for rule in RULES}
    found: list[Finding] = []
    for s in suppressions:
        if not s.codes:
            found.append(_finding(s, "it names no rule, so it accepts nothing: write `# fsdp2: ignore[CODE] reason`"))
        for code in s.codes:
            if code not in known:
                found.append(_finding(s, f"there is no rule {code}; `fsdp2 explain` lists the rules"))
            elif code in judged and code not in s.used:
                found.append(_finding(s, f"{code} is not found here (any more): remove it"))
    return found


def _finding(suppression: Suppression, why: str) -> Finding:
    message = f"this suppression suppresses nothing: {why}"
    return Finding(*UNUSED, Severity.WARN, 0, message, suppression.at)
