"""What a proof is and what it comes to."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from ..errors import UserError
from ..findings import Finding

if TYPE_CHECKING:
    from .bench import Bench

Status = Literal["pass", "fail", "skip"]


class CannotProve(UserError):
    """The script gives a proof nothing to work on, such as one that never saves: neither a pass nor a fail."""


class DoesNotApply(CannotProve):
    """The claim says nothing about this script, and there is nothing wrong with that."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What came of a proof: `figures` are its numbers, `reason` a sentence, `findings` the rules broken on the way.

    `applies` is false where it was skipped because its claim says nothing about the script.
    """

    name: str
    status: Status
    reason: str
    figures: dict[str, Any] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    applies: bool = True


class Proof(ABC):
    """A claim about a script that holds or not in real runs of it.

    `chained`: many runs, each of which needs the one before; begun first, where others are given beside it.
    """

    name: ClassVar[str]
    claim: ClassVar[str]
    chained: ClassVar[bool] = False

    @abstractmethod
    def prove(self, bench: Bench) -> Verdict:
        """Run what is needed and judge. Raises CannotProve when the script gives nothing to judge."""
