"""FS6: what keeps the last whole checkpoint whole."""

from __future__ import annotations

from collections.abc import Iterator

from ..events import AsyncSaved, Awaited, DirectoryRemoved, Event, FilesMoved, PointerWritten, Saved, Stepped
from ..findings import Finding, Severity
from ..trace import Trace
from .base import PROBE, Rule, in_tests


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
            if earlier is None or (trace.origin == PROBE and saved.replaces is not True) or in_tests(saved):
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
        if saved.at == earlier.at and isinstance(saved, Saved | AsyncSaved) and saved.once:
            return False
        trained = any(trace.between(earlier, saved, Stepped))
        return trained and not any(trace.between(earlier, saved, FilesMoved))


class RetentionBeforeDurable(Rule):
    """Until a save has ended there is no checkpoint but the one before it."""

    code = "FS610"
    name = "retention-before-durable"
    severity = Severity.ERROR
    clause = 9

    def check(self, trace: Trace) -> Iterator[Finding]:
        for removed in trace.of(DirectoryRemoved):
            found = self._last_whole(trace, removed)
            if found is None:
                continue
            last, newer = found
            if newer.order < removed.order:
                when, then = "while the one that follows it may still be written", "Await that save first"
            else:
                when, then = "before the one that follows it is written", "Remove it after that save"
            message = (
                f"this removes the newest whole checkpoint {when}: a job that dies in between has none. {then}, and "
                "keep two."
            )
            yield self.finding(removed, message, (last, "saved here"), (newer, "the save that follows"))
        for pointer in trace.of(PointerWritten):
            pointed = self._unfinished(trace, pointer)
            if pointed is None:
                continue
            message = (
                "this says that a checkpoint is the newest while it may still be written: a job that dies before it is "
                "whole resumes from half of one, or not at all. Await the save first."
            )
            yield self.finding(pointer, message, (pointed, "saved here"))

    def _last_whole(self, trace: Trace, removed: DirectoryRemoved) -> tuple[Event, Event] | None:
        """The save that was removed and the one that takes its place, where no other was whole meanwhile."""
        saves = [s for s in trace.before(removed, Saved, AsyncSaved) if _same(s, removed)]
        if not saves or any(trace.between(saves[-1], removed, FilesMoved)):
            return None
        last = saves[-1]
        meanwhile = list(trace.between(last, removed, Saved, AsyncSaved))
        if any(not self._in_flight(trace, s, removed) for s in meanwhile):
            return None
        later = (s for s in (*meanwhile, *trace.after(removed, Saved, AsyncSaved)) if s.at == last.at)
        newer = next(later, None)
        if newer is None or not any(trace.between(last, newer, Stepped)):
            return None
        return last, newer

    def _unfinished(self, trace: Trace, pointer: PointerWritten) -> AsyncSaved | None:
        """The save that the pointer names, if it may still be under way."""
        saves = list(trace.before(pointer, AsyncSaved))
        if not saves or not self._in_flight(trace, saves[-1], pointer):
            return None
        last = saves.pop()
        before = {piece for s in saves if s.at == last.at for piece in s.pieces}
        own = {piece for piece in last.pieces if piece.startswith("<")} - before
        return last if own & set(pointer.pieces) else None

    def _in_flight(self, trace: Trace, saved: Event, event: Event) -> bool:
        """Whether a save may not have ended when the event happens."""
        if not isinstance(saved, AsyncSaved):
            return False
        awaited = any(a.future == saved.future for a in trace.between(saved, event, Awaited))
        return not awaited and not trace.escaped(saved.future)


def _same(saved: Event, removed: DirectoryRemoved) -> bool:
    """Whether it is the directory of that save which is removed."""
    if not isinstance(saved, Saved | AsyncSaved):
        return False
    if removed.target is not None and saved.target is not None:
        return removed.target.rstrip("/") == saved.target.rstrip("/")
    return bool(removed.pieces) and removed.pieces == saved.pieces
