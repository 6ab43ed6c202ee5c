"""FS8: saves that go on while the program does."""

from __future__ import annotations

from collections.abc import Iterator

from ..events import AsyncSaved, Awaited
from ..findings import Finding, Severity
from ..trace import Trace
from .base import Rule, concluded


class AsyncSaveNotAwaited(Rule):
    """A failure of an asynchronous save is in its future, and nowhere else."""

    code = "FS801"
    name = "async-save-not-awaited"
    severity = Severity.ERROR
    clause = 10

    def check(self, trace: Trace) -> Iterator[Finding]:
        if not concluded(trace):
            return
        for saved in trace.of(AsyncSaved):
            if any(a.future == saved.future for a in trace.after(saved, Awaited)) or trace.escaped(saved.future):
                continue
            message = (
                "this asynchronous save may never be awaited: if it fails nothing tells, and the program may end "
                "before it is written. Keep its future and call .result() before the program ends."
            )
            yield self.finding(saved, message)


class AsyncSavesOverlap(Rule):
    """Two saves at once make their collectives over one group in an order that differs from rank to rank."""

    code = "FS802"
    name = "async-saves-overlap"
    severity = Severity.ERROR
    clause = 10

    def check(self, trace: Trace) -> Iterator[Finding]:
        for second in trace.of(AsyncSaved):
            earlier = list(trace.before(second, AsyncSaved))
            if not earlier:
                continue
            first = earlier[-1]
            awaited = any(a.future == first.future for a in trace.between(first, second, Awaited))
            if awaited or trace.escaped(first.future):
                continue
            message = (
                "an asynchronous save starts while the one before it may still run: they disturb each other's "
                "collectives and files. Call .result() on the earlier save's future first."
            )
            yield self.finding(second, message, (first, "the earlier save"))
