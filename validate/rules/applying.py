"""FS7: how a state dict is given to the model."""

from __future__ import annotations

from collections.abc import Iterator

from ..events import Event, Form, Kind, Loaded, Sharded, StateApplied, StateTaken, TorchLoaded, TorchSaved, Via
from ..findings import Finding, Severity
from ..trace import Trace, implied
from .base import PROBE, Rule, named


def _sharded_before(trace: Trace, applied: StateApplied) -> Sharded | None:
    """Where what the state dict is given to was sharded, if it was."""
    return next(
        (s for s in trace.before(applied, Sharded) if any(trace.related(s.module, m) for m in applied.to)), None
    )


def _last_load(trace: Trace, applied: StateApplied) -> Event | None:
    """What read a file last before a state dict was given."""
    return max(trace.before(applied, Loaded, TorchLoaded), key=lambda e: e.order, default=None)


class LenientLoadUnchecked(Rule):
    """With `strict=False` a state dict whose keys are all wrong loads nothing and raises nothing."""

    code = "FS705"
    name = "lenient-load-unchecked"
    severity = Severity.ERROR
    clause = 7

    def check(self, trace: Trace) -> Iterator[Finding]:
        for applied in trace.of(StateApplied):
            if applied.strict is not False or not self._loses(trace, applied):
                continue
            name = named(applied.to)
            message = (
                f"strict=False, and nobody looks at the keys that were missing: where the names differ by a prefix "
                f"nothing at all is loaded into {name}, and it keeps its random weights. "
                "Look at what the call returns, and raise unless only what you expect is missing."
            )
            if applied.missed:
                message = (
                    f"strict=False, and none of the keys of {name} was in the state dict: nothing was loaded, it keeps "
                    "the weights that it had. Make the names agree, and raise when keys are missing."
                )
            yield self.finding(applied, message)

    def _loses(self, trace: Trace, applied: StateApplied) -> bool:
        if trace.origin == PROBE:
            return applied.missed is True
        sharded = _sharded_before(trace, applied) is not None
        return applied.unread is True and sharded and not self._has_its_names(trace, applied)

    def _has_its_names(self, trace: Trace, applied: StateApplied) -> bool:
        """Whether a model in memory gave the state, or DCP was asked for the own keys and raised where one lacked."""
        if applied.state is not None and any(t.state == applied.state for t in trace.before(applied, StateTaken)):
            return True
        last = _last_load(trace, applied)
        asked = (last.entries or ()) if isinstance(last, Loaded) else ()
        return any(e.kind is Kind.MODEL and e.of in applied.to and e.prefix is None for e in asked)


class FullStateWithoutBroadcast(Rule):
    """A gathered state dict fits a sharded model only by the helpers, and only if every rank has it or is sent it."""

    code = "FS708"
    name = "full-state-without-broadcast"
    severity = Severity.ERROR
    clause = 7

    def check(self, trace: Trace) -> Iterator[Finding]:
        for applied in trace.of(StateApplied):
            message = self._wrong(trace, applied)
            if message is None:
                continue
            sharded = _sharded_before(trace, applied)
            yield self.finding(applied, message, (sharded, "sharded here"))

    def _wrong(self, trace: Trace, applied: StateApplied) -> str | None:
        helper = applied.via is Via.HELPER
        if helper and applied.broadcast is True and applied.full is False:
            return (
                "broadcast_from_rank0=True needs full_state_dict=True beside it: this raises ValueError. "
                "Pass StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)."
            )
        if helper and applied.full is True and applied.broadcast is False and applied.empty is True:
            return (
                "some ranks have no state dict to give, and none is sent to them: they raise and the others wait for "
                "them. Pass StateDictOptions(full_state_dict=True, broadcast_from_rank0=True) on all ranks."
            )
        whole = applied.form is Form.FULL and applied.full is False and applied.assign is False
        sharded = _sharded_before(trace, applied)
        if whole and sharded is not None and implied(sharded, applied) and not self._own_file(trace, applied):
            return (
                f"the state dict has whole tensors, the parameters of {named(applied.to)} are sharded: copying the "
                "one into the other raises. Use set_model_state_dict(model, state, "
                "options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=True))."
            )
        return None

    def _own_file(self, trace: Trace, applied: StateApplied) -> bool:
        """Whether the file may be one that this program writes, of its shards."""
        last = _last_load(trace, applied)
        saved = (e for s in trace.of(TorchSaved) for e in s.entries or ())
        return isinstance(last, TorchLoaded) and any(e.of in applied.to and e.form is not Form.FULL for e in saved)


class AssignedOverShards(Rule):
    """`assign=True` puts the given tensors in the place of the parameters, whatever they are."""

    code = "FS709"
    name = "assigned-over-shards"
    severity = Severity.ERROR
    clause = 7

    def check(self, trace: Trace) -> Iterator[Finding]:
        for applied in trace.of(StateApplied):
            sharded = _sharded_before(trace, applied)
            if applied.assign is not True or applied.form is not Form.FULL or sharded is None:
                continue
            message = (
                f"assign=True puts whole tensors in the place of the sharded parameters of {named(applied.to)}: FSDP "
                "fails on the next forward, or at once. Use set_model_state_dict(model, state, "
                "options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=True))."
            )
            yield self.finding(applied, message, (sharded, "sharded here"))
