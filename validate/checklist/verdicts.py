"""The verdict on an item: what the rules found, else what the item itself asks of what was seen."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..events import Location
from ..findings import Finding

if TYPE_CHECKING:
    from .items import Item
    from .seen import Seen


class Status(str, enum.Enum):
    """`not-seen`: it does not apply, or the reader cannot tell."""

    DONE = "done"
    MISSING = "missing"
    BROKEN = "broken"
    NOT_SEEN = "not-seen"


@dataclass(frozen=True)
class Verdict:
    """`at`: where it is done, or where to do it, as far as there is such a place. `note` says why, or what to look at.

    `places`: where findings of the item's `at_saves` rules count; `broken`: the findings that break it.
    """

    status: Status
    at: Location | None = None
    note: str = ""
    places: frozenset[Location] = frozenset()
    broken: tuple[Finding, ...] = ()


@dataclass(frozen=True)
class Workflow:
    """One list of SKILL.md."""

    letter: str
    title: str
    items: tuple[Item, ...]

    def judged(self, seen: Seen) -> list[Verdict]:
        """A verdict for each item, by what was seen alone."""
        return [item.verdict(seen) for item in self.items]


def applies(item: Item, verdict: Verdict, finding: Finding) -> bool:
    """Whether a finding breaks an item."""
    if finding.code in item.at_saves:
        return finding.at in verdict.places
    if item.any_rule:
        return finding.severity.fails
    return finding.code in item.rules


def ticked(workflow: Workflow, verdicts: Sequence[Verdict], findings: Iterable[Finding]) -> list[Verdict]:
    """The verdicts once it is known what the rules found."""
    findings = list(findings)
    result = []
    for item, verdict in zip(workflow.items, verdicts, strict=True):
        broken = tuple(f for f in findings if applies(item, verdict, f))
        result.append(
            dataclasses.replace(verdict, status=Status.BROKEN, at=broken[0].at, note="", broken=broken)
            if broken
            else verdict
        )
    return result
