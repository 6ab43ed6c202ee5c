"""FS3: weights that two modules share, and what makes two of them."""

from __future__ import annotations

from collections.abc import Iterator

from ..events import (
    Backward,
    Event,
    Exited,
    ForwardEntered,
    GroupDestroyed,
    Materialised,
    OptimizerBuilt,
    Parallelised,
    Ref,
    Sharded,
    StateApplied,
    Tied,
    Via,
)
from ..findings import Finding, Severity
from ..trace import Trace, implied, together
from .base import Rule

_PARTING: dict[type[Event], tuple[str, str]] = {  # what may make two parameters of one, and where to tie them again
    Materialised: (
        "to_empty gives each module memory of its own",
        "after to_empty, or call to_empty after sharding; one FSDP group keeps a tie",
    ),
    StateApplied: (
        "load_state_dict with assign=True gives each module a parameter of its own",
        "after it; one FSDP group keeps a tie",
    ),
    Parallelised: ("parallelize_module gives each module of the plan parameters of its own", "after it"),
}


class TieLost(Rule):
    """What gives each module new parameters gives two modules that shared one a parameter each."""

    code = "FS305"
    name = "tie-lost"
    severity = Severity.ERROR
    clause = 3

    def check(self, trace: Trace) -> Iterator[Finding]:
        if any(trace.of(Exited, GroupDestroyed)) and not any(trace.of(Backward)):
            return  # two that begin alike and are not trained stay alike
        used_by: list[tuple[Event, tuple[Ref, ...]]] = [(e, (e.module,)) for e in trace.of(ForwardEntered)]
        used_by += [(built, built.modules) for built in trace.of(OptimizerBuilt)]
        for used, models in used_by:
            for tied in trace.before(used, Tied):
                other = tied.to
                if other is None or not all(_any_holds(trace, models, m) for m in (tied.module, other)):
                    continue
                parting = next(
                    (e for e in trace.between(tied, used, *_PARTING) if self._parts(trace, e, tied)),
                    None,
                )
                if parting is None or self._may_be_mended(trace, parting, tied):
                    continue
                cause, advice = _PARTING[type(parting)]
                message = (
                    f"`{tied.module.name}.{tied.name}` was one parameter with that of `{other.name}`, and {cause}: "
                    "from here on they are two, each trained with its part of the gradient. Tie them again "
                    f"{advice}."
                )
                yield self.finding(parting, message, (tied, "tied here"))

    def _parts(self, trace: Trace, event: Event, tied: Tied) -> bool:
        """Whether the event makes two parameters of one; not those of an FSDP group, which knows of the tie."""
        of: tuple[Ref, ...] = ()
        if isinstance(event, Materialised):
            of = (event.module,)
        elif isinstance(event, StateApplied) and event.via is Via.METHOD and event.assign is True:
            of = event.to
        pair = [m for m in (tied.module, tied.to) if m is not None]
        if isinstance(event, Parallelised):
            return any(m in event.renewed for m in pair)
        if not all(_any_holds(trace, of, m) for m in pair):
            return False
        return not any(trace.within(m, s.module) for s in trace.before(event, Sharded) for m in pair)

    def _may_be_mended(self, trace: Trace, parting: Event, tied: Tied) -> bool:
        """Whether they are tied again, at any later time, or may be where the program cannot be followed."""
        pair = {tied.module, tied.to}
        for again in trace.after(parting, Tied):
            unknown = again.to is None and any(m is not None and trace.related(again.module, m) for m in pair)
            if unknown or pair & {again.module, again.to}:
                return True
        return any(m is not None and trace.escaped(m, since=parting) for m in (*pair, *self._around(trace, tied)))

    def _around(self, trace: Trace, tied: Tied) -> list[Ref]:
        """The modules that hold what is tied, as far as events mention them."""
        mentioned = {m for a in trace.of(StateApplied) for m in a.to}
        mentioned.update(entered.module for entered in trace.of(ForwardEntered))
        mentioned.update(emptied.module for emptied in trace.of(Materialised))
        return [m for m in mentioned if trace.inside(tied.module, m)]


class TieSplitAcrossGroups(Rule):
    """Each group of FSDP has its parameters to itself, and the gradient of a shared one would be each group's part."""

    code = "FS306"
    name = "tie-split-across-groups"
    severity = Severity.ERROR
    clause = 2

    def check(self, trace: Trace) -> Iterator[Finding]:
        for tied in trace.of(Tied):
            if tied.to is None:
                continue
            one, other = (self._group(trace, tied, m) for m in (tied.module, tied.to))
            if one is None or other is None or one.module == other.module or other.module in one.beside:
                continue
            first, second = sorted((one, other), key=lambda s: s.order)
            if not self._both_reached(tied, first, second) or any(
                trace.escaped(m, since=tied) for m in (tied.module, tied.to)
            ):
                continue
            message = (
                f"`{tied.module.name}.{tied.name}` and that of `{tied.to.name}` are one parameter, which two calls of "
                f"fully_shard take: `{first.module.name}` and `{second.module.name}` become groups of their own. torch "
                "refuses it (ValueError), or makes two weights of one, by its release. Leave both to the root's group, "
                "or pass both modules to one call as a list."
            )
            yield self.finding(second, message, (first, "sharded here"), (tied, "tied here"))

    def _group(self, trace: Trace, tied: Tied, module: Ref) -> Sharded | None:
        """The first call that takes the parameters of a module."""
        return next((s for s in trace.of(Sharded) if together(s, tied) and trace.within(module, s.module)), None)

    def _both_reached(self, tied: Tied, first: Sharded, second: Sharded) -> bool:
        """Whether the tie and both calls come together, in that order, and not on conditions of their own."""
        if not (tied.order < first.order and together(first, second)):
            return False
        return implied(tied, second) or (implied(first, tied) and implied(second, tied))


def _any_holds(trace: Trace, outer: tuple[Ref, ...], module: Ref) -> bool:
    return any(trace.within(module, m) for m in outer)
