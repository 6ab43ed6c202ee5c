"""FS4: gradients that are added up over several micro-batches before a step."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence

from ..events import (
    AllReduceSet,
    Backward,
    Choice,
    Event,
    ForwardEntered,
    GradientsCleared,
    GradientSyncSet,
    Location,
    MeshCreated,
    OptimizerBuilt,
    Sharded,
    Stepped,
)
from ..findings import Finding, Severity
from ..trace import Trace, together
from .base import PROBE, Rule

# Optimizers that take one gradient a step, and nothing from the program between two.
_BY_GRADIENTS_ALONE = ("Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "Muon", "NAdam", "RAdam", "RMSprop", "SGD")
_REPLICATE = re.compile(r"repl|ddp|inter|outer|node", re.IGNORECASE)


def accumulated(trace: Trace) -> Iterator[tuple[Backward, ForwardEntered]]:
    """Each backward that adds to the gradients of an earlier one at the same place, and the forward before it.

    Between the two the sharded model is called again, and no way that leads to the second comes by a step or by the
    clearing of gradients.
    """
    for second in trace.of(Backward):
        first = next((b for b in reversed(list(trace.before(second, Backward))) if b.at == second.at), None)
        if first is None:
            continue
        taken = {*first.when.path, *second.when.path}
        ended = trace.between(first, second, Stepped, GradientsCleared)
        if _cover_all([way - taken for way in _ways(ended)]):
            continue
        again = (f for f in trace.between(first, second, ForwardEntered) if f.sharded)
        entered = next((f for f in again if any(e.at == f.at for e in trace.before(first, ForwardEntered))), None)
        if entered is not None and any(trace.after(second, Stepped)):
            yield second, entered


def _ways(events: Iterable[Event]) -> list[set[Choice]]:
    """The conditions on each place where these happen.

    A call of one of several optimizers is as many events, each where it is that one: what they share is on the call.
    """
    places: dict[tuple[type[Event], Location], tuple[Choice, ...]] = {}
    for event in events:
        known = places.setdefault((type(event), event.at), event.when.path)
        places[type(event), event.at] = tuple(choice for choice in known if choice in event.when.path)
    paths = list(places.values())
    return [{*path} - _parts(path, paths) for path in paths]


def _parts(path: tuple[Choice, ...], others: Sequence[tuple[Choice, ...]]) -> set[Choice]:
    """The parts of a condition of several that are on the path beside the whole: `not a` and `not b` of `a or b`.

    Where another way has the opposite of the whole, they are what this one has before the whole and that one has not.
    """
    found: set[Choice] = set()
    for other in others:
        apart = next((i for i, (one, two) in enumerate(zip(path, other, strict=False)) if one != two), None)
        if apart is None:
            continue
        whole = Choice(other[apart].condition, not other[apart].taken)
        if whole in path[apart:]:
            found.update(path[apart : path.index(whole)])
    return found


_CONDITIONS = 8  # that are looked at together


def _cover_all(ways: Sequence[set[Choice]], depth: int = 0) -> bool:
    """Whether one of these events is on every way, whichever side of each condition is taken.

    The step of an optimizer that is one of two is two events, each on its side of the choice between them.
    """
    if not ways:
        return False
    if not all(ways) or depth == _CONDITIONS:
        return True
    one = next(iter(ways[0]))
    sides = (Choice(one.condition, True), Choice(one.condition, False))
    return all(
        _cover_all([way - {side} for way in ways if other not in way], depth + 1)
        for side, other in (sides, reversed(sides))
    )


class AccumulationNotDivided(Rule):
    """Gradients of micro-batches add up: of means they make as many times the mean as there are micro-batches."""

    code = "FS411"
    name = "accumulation-not-divided"
    severity = Severity.WARN
    clause = 6

    def check(self, trace: Trace) -> Iterator[Finding]:
        for backward, entered in accumulated(trace):
            if backward.averaged is not True or trace.escaped(entered.module):
                continue
            if any(other.averaged is not True and not together(other, backward) for other in trace.of(Backward)):
                continue  # divided where there is more than one: `if steps > 1: loss = loss / steps`
            stepped = next(trace.after(backward, Stepped))
            message = (
                "gradients are added up over micro-batches, each loss is the mean over its own, and nothing divides by "
                "their number: the gradient is as many times too large, and so is its norm, which clipping then cuts. "
                "Call (loss / accumulation_steps).backward()."
            )
            yield self.finding(backward, message, (stepped, "the step"))


class AllReduceEachMicroBatch(Rule):
    """With replicas, each backward reduces gradients over the shards and then over the replicas."""

    code = "FS413"
    name = "all-reduce-each-micro-batch"
    severity = Severity.WARN
    clause = 6

    def check(self, trace: Trace) -> Iterator[Finding]:
        if any(trace.of(GradientSyncSet, AllReduceSet)):
            return
        alone = {m.mesh for m in trace.of(MeshCreated) if m.shape and m.shape[0] == 1}
        hybrid = [s for s in trace.of(Sharded) if self._replicates(s) and s.mesh not in alone]
        for backward, entered in accumulated(trace) if hybrid else ():
            sharded = next((s for s in hybrid if trace.related(s.module, entered.module)), None)
            if sharded is None or trace.escaped(entered.module):
                continue
            name = entered.module.name
            message = (
                "gradients are added up over micro-batches, and each backward sums them over the replicas anew, across "
                "the slowest links there are: once a step is enough. Call "
                f"{name}.set_requires_all_reduce(last) before each backward, where last tells of the last micro-batch."
            )
            yield self.finding(backward, message, (sharded, "sharded over replicas here"))

    def _replicates(self, sharded: Sharded) -> bool:
        dims = sharded.mesh_dims or ()
        return len(dims) == 2 and _REPLICATE.search(dims[0]) is not None


class GradientsClearedBeforeStep(Rule):
    """Clearing gradients within the loop over micro-batches throws away what all but the last of them gave."""

    code = "FS415"
    name = "gradients-cleared-before-step"
    severity = Severity.WARN
    clause = 6

    def check(self, trace: Trace) -> Iterator[Finding]:
        built = list(trace.of(OptimizerBuilt))
        if len(built) != 1 or built[0].cls not in _BY_GRADIENTS_ALONE:
            return  # another optimizer's step may use what this one's clears
        steps = list(trace.of(Stepped))
        earlier: list[Stepped | None] = [None, *steps]
        pairs = list(zip(earlier, steps, strict=False))
        if trace.origin == PROBE and (len(pairs) < 2 or not all(self._wasted(trace, *pair) for pair in pairs[1:])):
            return  # now and then a batch may be dropped
        for before, stepped in pairs:
            cleared = self._wasted(trace, before, stepped)
            if cleared is not None:
                message = (
                    "gradients are cleared between two micro-batches of one step: what the earlier ones gave is thrown "
                    "away, and only the last one counts. Clear them once a step, after optimizer.step()."
                )
                yield self.finding(cleared, message, (stepped, "the step"))
                return

    def _wasted(self, trace: Trace, before: Stepped | None, stepped: Stepped) -> GradientsCleared | None:
        """What clears the gradients of each micro-batch of a step but the last; None if something does not."""
        backwards = [b for b in trace.before(stepped, Backward) if before is None or b.order > before.order]
        found: GradientsCleared | None = None
        for first, second in itertools.pairwise(backwards):
            taken = {*first.when.path, *second.when.path}
            called = any(f.sharded for f in trace.between(first, second, ForwardEntered))
            cleared = (c for c in trace.between(first, second, GradientsCleared) if taken.issuperset(c.when.path))
            found = next(cleared, None)
            if found is None or not called or first.at != second.at:
                return None
        return found
