"""FS4: the optimizer, and the parameters that it is given."""

from __future__ import annotations

from collections.abc import Iterator

from ..events import (
    Backward,
    Escaped,
    Event,
    ForwardEntered,
    OptimizerBuilt,
    ParametersExchanged,
    Ref,
    Resharded,
    Sharded,
    StateApplied,
    StateTaken,
    Stepped,
    Unsharded,
)
from ..findings import Finding, Severity
from ..trace import Trace, implied
from .base import Rule


class OptimizerBeforeSharding(Rule):
    """`fully_shard` replaces a module's parameters; an optimizer built earlier keeps stepping the old ones."""

    code = "FS401"
    name = "optimizer-before-sharding"
    severity = Severity.ERROR
    clause = 4

    def check(self, trace: Trace) -> Iterator[Finding]:
        for built in trace.of(OptimizerBuilt):
            for module in built.modules:
                sharded = next(
                    (s for s in trace.after(built, Sharded) if self._replaces(trace, s, module, built)),
                    None,
                )
                if sharded is None or self._given_up(trace, built, sharded):
                    continue
                if any(e.optimizer in (None, built.optimizer) for e in trace.after(sharded, ParametersExchanged)):
                    continue  # for those that it replaced
                message = (
                    f"{built.cls} is built over the parameters of `{module.name}` before fully_shard replaces them: "
                    "it steps dead parameters and nothing trains. Build the optimizer after the last fully_shard."
                )
                yield self.finding(built, message, (sharded, "sharded here, later"))
                break

    def _replaces(self, trace: Trace, sharded: Sharded, module: Ref, built: OptimizerBuilt) -> bool:
        """Whether this call replaces parameters of `module`; those sharded before the optimizer was built stay."""
        if not trace.related(sharded.module, module):
            return False
        return not any(trace.within(module, s.module) for s in trace.before(built, Sharded))

    def _given_up(self, trace: Trace, built: OptimizerBuilt, sharded: Sharded) -> bool:
        """Whether the optimizer is built anew after sharding, and this one is not stepped any more."""
        anew = list(trace.after(sharded, OptimizerBuilt))
        others = {o.optimizer for o in anew if o.optimizer != built.optimizer and implied(o, sharded)}
        steps = list(trace.after(sharded, Stepped))
        either = {s.at for s in steps if s.optimizer in others}  # which of them a variable holds is not known there
        if any(s.optimizer == built.optimizer and s.at not in either for s in steps):
            return any(o.optimizer == built.optimizer for o in anew)
        return any(any(trace.related(m, sharded.module) for m in o.modules) for o in anew)


class OptimizerOverUnshardedParameters(Rule):
    """A root stays gathered after forward: its `parameters()` are then whole tensors, gone at the next resharding."""

    code = "FS402"
    name = "optimizer-over-unsharded-parameters"
    severity = Severity.ERROR
    clause = 4

    def check(self, trace: Trace) -> Iterator[Finding]:
        for built in trace.of(OptimizerBuilt):
            for sharded in trace.before(built, Sharded):
                left = self._left_gathered(trace, sharded, built)
                if left is None:
                    continue
                name = sharded.module.name
                message = (
                    f"{built.cls} is built while `{name}` is gathered, as a root is after its forward: it takes whole "
                    f"tensors in the place of the shards and these never train. Build it before the first forward, or "
                    f"call {name}.reshard() first."
                )
                yield self.finding(built, message, (left, "gathered here"))
                break

    def _left_gathered(self, trace: Trace, sharded: Sharded, built: OptimizerBuilt) -> Event | None:
        """What gathered the parameters that this call took, if they are so still when the optimizer takes them."""
        module = sharded.module
        if sharded.manages is not True or not any(trace.within(module, m) for m in built.modules):
            return None
        if any(trace.inside(module, s.module) for s in trace.before(built, Sharded)):
            return None  # what is no root reshards after forward
        entered: list[Event] = [u for u in trace.between(sharded, built, Unsharded) if u.module == module]
        if sharded.keeps is True:
            forwards = trace.between(sharded, built, ForwardEntered)
            entered += [e for e in forwards if trace.within(module, e.module)]
        if not entered:
            return None
        last = max(entered, key=lambda e: e.order)
        if any(trace.between(last, built, Backward)) or any(
            trace.related(r.module, module) for r in trace.between(last, built, Resharded)
        ):
            return None
        touched = [o for taken in trace.between(last, built, StateTaken) for o in taken.of]
        touched += [o for applied in trace.between(last, built, StateApplied) for o in applied.to]
        if any(trace.related(o, module) for o in touched) or any(
            trace.related(e.of, module) for e in trace.before(built, Escaped)
        ):
            return None  # a state dict is taken of shards
        return last
