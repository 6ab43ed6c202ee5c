"""FS6: what keeps the last whole checkpoint whole."""

from __future__ import annotations

from collections.abc import Iterator

from ..events import AsyncSaved, Event, FilesMoved, Saved, Stepped
from ..findings import Finding, Severity
from ..trace import Trace
from .base import PROBE, Rule


class PublishedCheckpointOverwritten(Rule):
    """DCP writes into the files that are there: while it does, neither the old checkpoint is whole nor the new one."""

    code = "FS609"
    name = "published-checkpoint-overwritten"
    severity = Severity.ERROR
    clause = 9

    def check(self, trace: Trace) -> Iterator[Finding]:
        for saved in trace.of(Saved, AsyncSaved):
            place = saved.target or saved.place
            before = (e for e in trace.before(saved, Saved, AsyncSaved) if place and place == (e.target or e.place))
            earlier = next((e for e in before if self._is_lost(trace, e, saved)), None)
            if earlier is None or (trace.origin == PROBE and saved.replaces is not True):
                continue
            message = (
                "each save goes into the same directory, over the checkpoint that is there: if one is interrupted, "
                "the files are partly of this step and partly of the one before, and there is no other. Save into a "
                "directory of its own (`step-{step}`), and remove old ones when the new one is whole."
            )
            related = ((earlier, "saved there before"),) if earlier.at != saved.at else ()
            yield self.finding(saved, message, *related)

    def _is_lost(self, trace: Trace, earlier: Event, saved: Event) -> bool:
        """Whether an earlier state of training is still there for this save to write over."""
        trained = any(trace.between(earlier, saved, Stepped))
        return trained and not any(trace.between(earlier, saved, FilesMoved))
