"""FS6: the state of an optimizer, by the numbers of its parameters or by their names."""

from __future__ import annotations

from collections.abc import Iterator

from ..events import AsyncSaved, Entry, Event, Kind, Loaded, OptimizerBuilt, Saved, Via
from ..findings import Finding, Severity
from ..trace import Trace, together
from .base import Rule
from .omissions import entries_of

_BY_NUMBER = (Via.METHOD, Via.OBJECT)
_HELPERS = "get_state_dict before the save and before the load, and set_state_dict after it"


class OptimizerStateByIndex(Rule):
    """`optimizer.state_dict()` numbers the parameters as the optimizer was given them; the helpers name them."""

    code = "FS614"
    name = "optimizer-state-by-index"
    severity = Severity.ERROR
    clause = 7

    def check(self, trace: Trace) -> Iterator[Finding]:
        given = {b.optimizer.id: b.given for b in trace.of(OptimizerBuilt) if b.given}
        for loaded in trace.of(Loaded):
            for asked in _of_optimizers(loaded, given):
                every = (s for s in trace.of(Saved, AsyncSaved) if together(s, loaded))
                saves = [s for s in every if s.series is not None and s.series == loaded.series]
                pairs = [(s, e) for s in saves for e in _of_optimizers(s, given) if e.key == asked.key]
                messages = [self._message(saved, asked, given) for _, saved in pairs]
                if not messages or None in messages:  # what is loaded may be what one of the others saved
                    continue
                saved_at, _ = pairs[0]
                yield self.finding(loaded, messages[0] or "", (saved_at, "saved here"))

    def _message(self, saved: Entry, asked: Entry, given: dict[int, tuple[str, ...]]) -> str | None:
        numbered, wanted = saved.via in _BY_NUMBER, asked.via in _BY_NUMBER
        if numbered != wanted:
            of, by = ("number", "name") if numbered else ("name", "number")
            return (
                f"`{asked.key}` was saved by the {of}s of the parameters and is asked for by their {by}s: the keys are "
                f"others, and the load raises. Use the helpers on both sides: {_HELPERS}."
            )
        before, now = (given.get(e.of.id, ()) if e.of is not None else () for e in (saved, asked))
        if numbered and before != now and sorted(before) == sorted(now):
            return (
                f"`{asked.key}` was saved by the numbers of the parameters, and this optimizer was given them in "
                "another order: each gets the moments of another one, and where the shapes are the same nothing is "
                f"said. Use the helpers, which go by name: {_HELPERS}."
            )
        return None


def _of_optimizers(event: Event, given: dict[int, tuple[str, ...]]) -> list[Entry]:
    """The state of torch's own optimizers; others may number or name their parameters as they like."""
    ways = (*_BY_NUMBER, Via.HELPER)
    every = (e for e in entries_of(event) if e.kind is Kind.OPTIMIZER and e.via in ways)
    return [e for e in every if e.of is not None and e.of.id in given]
