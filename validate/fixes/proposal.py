"""A proposal: a file's text with one finding mended, and the edits that lead there."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Edit:
    """Lines `first` to `last - 1` (from 0) of a text are replaced; where they are none, `lines` go before `first`."""

    first: int
    last: int
    lines: tuple[str, ...]

    def disturbs(self, other: Edit) -> bool:
        """Whether the two cannot be made together: they touch a line in common, or insert at the same place."""
        return self.first == other.first or (self.first < other.last and other.first < self.last)


@dataclass(frozen=True)
class Proposal:
    """`text` is the whole file after the fix; `message` says what the fix does.

    `safe`: the program means the same as before, apart from the mistake. What is not safe may change what a file holds,
    what other ranks do, or what another program sees, so a person should look at it.
    """

    message: str
    text: str
    safe: bool


def lines_of(text: str) -> list[str]:
    """The lines of a text with their ends, as line feeds alone end them."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)


def edits_between(old: str, new: str) -> tuple[Edit, ...]:
    """The lines that differ, as edits of `old`."""
    before, after = lines_of(old), lines_of(new)
    start = 0
    while start < min(len(before), len(after)) and before[start] == after[start]:
        start += 1
    end = 0
    while end < min(len(before), len(after)) - start and before[-1 - end] == after[-1 - end]:
        end += 1
    middle = before[start : len(before) - end], after[start : len(after) - end]
    matcher = difflib.SequenceMatcher(None, *middle, autojunk=False)
    return tuple(
        Edit(start + i1, start + i2, tuple(middle[1][j1:j2]))
        for tag, i1, i2, j1, j2 in matcher.get_opcodes()
        if tag != "equal"
    )


def edited(old: str, edits: Iterable[Edit]) -> str:
    """The text after edits that do not disturb each other."""
    lines = lines_of(old)
    for edit in sorted(edits, key=lambda e: (e.first, e.last), reverse=True):
        lines[edit.first : edit.last] = edit.lines
    return "".join(lines)


def disturbed(some: Sequence[Edit], others: Sequence[Edit]) -> bool:
    """Whether any of some edits cannot be made together with any of the others."""
    return any(one.disturbs(other) for one in some for other in others)
