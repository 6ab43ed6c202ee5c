"""FS4: the optimizer and the training loop."""

from __future__ import annotations

from collections.abc import Iterator

from ..events import EntryRegistered, ForwardBypassed, OptimizerBuilt, Ref, Sharded, Stepped
from ..findings import Finding, Severity
from ..trace import Trace
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
        return not any(s.module == module or trace.inside(module, s.module) for s in trace.before(built, Sharded))

    def _given_up(self, trace: Trace, built: OptimizerBuilt, sharded: Sharded) -> bool:
        """Whether the optimizer is built anew after sharding, and this one is not stepped any more."""
        if any(s.optimizer == built.optimizer for s in trace.after(sharded, Stepped)):
            return any(o.optimizer == built.optimizer for o in trace.after(sharded, OptimizerBuilt))
        return any(
            any(trace.related(m, sharded.module) for m in o.modules) for o in trace.after(sharded, OptimizerBuilt)
        )


class ForwardIsBypassed(Rule):
    """FSDP gathers parameters in hooks that `module(...)` runs and `module.forward(...)` does not."""

    code = "FS403"
    name = "forward-bypassed"
    severity = Severity.ERROR
    clause = 5

    def check(self, trace: Trace) -> Iterator[Finding]:
        for event in trace.of(ForwardBypassed):
            registered = (r for r in trace.before(event, EntryRegistered) if r.module == event.module)
            if any(r.method in (None, event.method) for r in registered):
                continue
            message = (
                f"`{event.module.name}.{event.method}(...)` skips the hooks in which FSDP gathers the parameters. "
                f"Call the module, `{event.module.name}(...)`, or register the method by register_fsdp_forward_method."
            )
            yield self.finding(event, message)
