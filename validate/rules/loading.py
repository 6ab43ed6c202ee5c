"""FS7: what a load is given to fill, and what becomes of it."""

from __future__ import annotations

from collections.abc import Iterator

from ..events import Entry, Kind, Loaded, OptimizerBuilt, StateApplied, StateTaken, Stepped, Via
from ..findings import Finding, Severity
from ..trace import Trace
from .base import Rule, concluded, quoted

_EAGER = frozenset({"Adagrad"})  # creates its state in its constructor; the others of torch.optim at the first step


class OptimizerLoadedLazily(Rule):
    """DCP fills the tensors it is given; an optimizer that never stepped has none to give."""

    code = "FS701"
    name = "optimizer-loaded-lazily"
    severity = Severity.ERROR
    clause = 7

    def check(self, trace: Trace) -> Iterator[Finding]:
        for loaded in trace.of(Loaded):
            empty = [e for e in loaded.entries or () if self._empty(trace, loaded, e)]
            if not empty:
                continue
            message = (
                f"{quoted(empty)} is the optimizer's own state dict and still empty, as it has not stepped yet: "
                "nothing is requested and nothing restored. Load into get_optimizer_state_dict(model, optimizer), "
                "which creates the state, and apply it by set_optimizer_state_dict."
            )
            built = [b for b in trace.before(loaded, OptimizerBuilt) if any(b.optimizer == e.of for e in empty)]
            yield self.finding(loaded, message, *((b, "built here") for b in built))

    def _empty(self, trace: Trace, loaded: Loaded, entry: Entry) -> bool:
        optimizer = entry.of
        if entry.kind is not Kind.OPTIMIZER or entry.via not in (Via.OBJECT, Via.METHOD) or optimizer is None:
            return False
        built = [b for b in trace.before(loaded, OptimizerBuilt) if b.optimizer == optimizer]
        if not built or any(b.stateless or b.cls.rpartition(".")[2] in _EAGER for b in built):
            return False
        filled = (
            any(s.optimizer == optimizer for s in trace.before(loaded, Stepped))
            or any(optimizer in a.to for a in trace.before(loaded, StateApplied))
            or any(optimizer in t.of and t.via is Via.HELPER for t in trace.before(loaded, StateTaken))
        )
        return not filled and not trace.escaped(optimizer)


class LoadedButNotApplied(Rule):
    """A load fills a dictionary; what of it is not the object's own memory must be given back to the object."""

    code = "FS702"
    name = "loaded-but-not-applied"
    severity = Severity.ERROR
    clause = 7

    def check(self, trace: Trace) -> Iterator[Finding]:
        if not concluded(trace):
            return
        for loaded in trace.of(Loaded):
            if loaded.state is not None and trace.escaped(loaded.state, since=loaded):
                continue
            left = [e for e in loaded.entries or () if self._left(trace, loaded, e)]
            if not left:
                continue
            names = ", ".join(dict.fromkeys(f"`{e.of.name}`" for e in left if e.of is not None))
            message = (
                f"{quoted(left)} is loaded into a state dict that is never given back to {names}: Python values in it "
                "(learning rate, step, position) and copied tensors are lost. Call set_state_dict, or load_state_dict "
                "of what it came from."
            )
            yield self.finding(loaded, message)

    def _left(self, trace: Trace, loaded: Loaded, entry: Entry) -> bool:
        if entry.of is None or entry.via not in (Via.METHOD, Via.HELPER):
            return False
        # Tensors of a sharded state dict are the object's own; Python values beside them never are.
        copied = entry.kind in (Kind.OPTIMIZER, Kind.SCHEDULER, Kind.LOADER)
        copied = copied or (entry.kind is Kind.MODEL and entry.aliased is False)
        applied = any(entry.of in a.to for a in trace.after(loaded, StateApplied))
        return copied and not applied and not trace.escaped(entry.of, since=loaded)
