"""FS4: how the sharded model is called."""

from __future__ import annotations

from collections.abc import Iterator

from ..events import EntryRegistered, Escaped, Event, Exited, ForwardBypassed, ForwardEntered, Ref, Sharded, Unsharded
from ..findings import Finding, Severity
from ..trace import Trace
from .base import PROBE, Rule

_ROOT_LATER = "requires running forward through the root module first"  # torch's words, when it is too late


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


class SubmoduleBeforeRoot(Rule):
    """The first forward of a root prepares all groups in it; before that, nothing inside it can be called."""

    code = "FS404"
    name = "submodule-before-root"
    severity = Severity.ERROR
    clause = 5

    def check(self, trace: Trace) -> Iterator[Finding]:
        for entered in trace.of(ForwardEntered):
            inner = entered.module
            if entered.borrows is not None:
                owner = entered.borrows
                if self._prepared(trace, owner, entered) or not self._sharded(trace, owner, entered):
                    continue
                message = (
                    f"`{inner.name}` is called by itself, but its parameters belong to the group of `{owner.name}`, "
                    f"which gathers them only in its own forward. Call `{inner.name}` in the forward of "
                    f"`{owner.name}`, or give it a group of its own by fully_shard."
                )
                yield self.finding(entered, message)
            elif self._sharded(trace, inner, entered):
                root = next(self._roots(trace, inner, entered), None)
                if root is None:
                    continue
                outer, later = root
                message = (
                    f"`{inner.name}` is called before `{outer.name}`, the root that it lies in: it then takes itself "
                    f"for a root, and the first call of `{outer.name}` raises. Call `{inner.name}` only in the forward "
                    f"of `{outer.name}`, or register the method that calls it by register_fsdp_forward_method."
                )
                yield self.finding(entered, message, (later, "the root, later"))

    def _sharded(self, trace: Trace, module: Ref, entered: Event) -> bool:
        return any(s.module == module for s in trace.before(entered, Sharded))

    def _prepared(self, trace: Trace, owner: Ref, entered: Event) -> bool:
        """Whether the owner's parameters may be gathered, by a forward of it or otherwise."""
        return (
            any(trace.within(owner, e.module) for e in trace.before(entered, ForwardEntered))
            or any(trace.related(u.module, owner) for u in trace.before(entered, Unsharded))
            or (trace.origin == PROBE and self._registered(trace, owner, entered))
            or any(trace.related(e.of, owner) for e in trace.before(entered, Escaped))
        )

    def _registered(self, trace: Trace, owner: Ref, entered: Event) -> bool:
        """Whether a method of the owner's gathers its parameters, whose calls the probe does not see."""
        return any(trace.related(r.module, owner) for r in trace.before(entered, EntryRegistered))

    def _roots(self, trace: Trace, inner: Ref, entered: ForwardEntered) -> Iterator[tuple[Ref, Event]]:
        """The sharded modules that hold the one entered and were never called before, with what calls them later."""
        for sharded in trace.of(Sharded):
            owner = sharded.module
            if not trace.inside(inner, owner) or self._prepared(trace, owner, entered):
                continue
            later: list[Event] = [
                e
                for e in trace.after(entered, ForwardEntered)
                if trace.within(owner, e.module) and e.order > sharded.order
            ]
            later += [e for e in trace.after(entered, Exited) if _ROOT_LATER in (e.error or "")]
            if later:
                yield owner, later[0]
