"""A finding: one place where a program breaks a rule."""

from __future__ import annotations

import enum

from .events import Location
from .records import record


class Severity(str, enum.Enum):
    """How bad a finding is.

    `error`: wrong numbers, lost state, a hang or a crash. `warn`: memory, speed, or wrong in a case that may not be
    yours. `info`: good to know; never fails a run.
    """

    ERROR = "error"
    WARN = "warn"
    INFO = "info"

    @property
    def rank(self) -> int:
        """Higher is worse."""
        return {"error": 2, "warn": 1, "info": 0}[self.value]

    @property
    def fails(self) -> bool:
        """Whether a finding of this severity makes the command exit with 1."""
        return self is not Severity.INFO


@record(frozen=True, slots=True)
class Finding:
    """`at` is the place to change; `related` the other places that make it wrong, each with a word on its part in it.

    `clause` is the number of the contract's clause (SKILL.md) that is broken, 0 for the linter's own bookkeeping.
    `ranks` tells on which ranks a probe
    saw it.
    """

    code: str
    name: str
    severity: Severity
    clause: int
    message: str
    at: Location
    related: tuple[tuple[Location, str], ...] = ()
    ranks: tuple[int, ...] = ()
