"""FS9: what leaves the job and what comes into it: gathered states, files of others."""

from __future__ import annotations

from collections.abc import Iterator

from ..events import (
    CollectiveCalled,
    GroupInitialised,
    Kind,
    Loaded,
    OptimizerBuilt,
    Ref,
    StateApplied,
    StateTaken,
    Stepped,
    TorchLoaded,
    Via,
)
from ..findings import Finding, Severity
from ..trace import Trace
from .base import READER, Rule, has_state, in_tests, named, unsharded

OFTEN = 3  # steps after which all weights are gathered, for that to be a habit
# Those of torch.optim whose update depends on how many steps they took.
_COUNTING = frozenset({"Adam", "AdamW", "Adamax", "NAdam", "RAdam"})


class FullStateOnEveryRank(Rule):
    """Only with `cpu_offload=True` do the other ranks get an empty dictionary instead of the whole state."""

    code = "FS901"
    name = "full-state-on-every-rank"
    severity = Severity.WARN
    clause = 7

    def check(self, trace: Trace) -> Iterator[Finding]:
        if any(started.world_size == 1 for started in trace.of(GroupInitialised)):
            return
        for taken in trace.of(StateTaken):
            if taken.full is not True or taken.offload is not False or not taken.of or unsharded(trace, taken):
                continue
            if in_tests(taken):
                continue
            if any(applied.state == taken.state for applied in trace.after(taken, StateApplied)):
                continue  # each rank gives what it has to a model
            message = (
                f"the whole state of {named(taken.of)} is gathered into the memory of every rank, on the device that "
                "it is trained on. Add cpu_offload=True: rank 0 then gets it in host memory and the others get "
                "nothing; every rank still has to call."
            )
            yield self.finding(taken, message)
        yield from self._by_tensor(trace)

    def _by_tensor(self, trace: Trace) -> Iterator[Finding]:
        """As many tensors gathered by the program itself as its optimizer steps, step after step."""
        weights = max((len(built.given) for built in trace.of(OptimizerBuilt)), default=0)
        steps: dict[int, list[CollectiveCalled]] = {}
        for called in trace.of(CollectiveCalled):
            if called.op == "full_tensor" and called.when.step:
                steps.setdefault(called.when.step, []).append(called)
        whole = [calls for calls in steps.values() if len(calls) >= max(weights, 2)]
        if weights and len(whole) >= OFTEN and 2 * len(whole) >= len({s.when.step for s in trace.of(Stepped)}):
            message = (
                f"full_tensor() gathers {len(whole[0])} tensors on every rank after a step, in {len(whole)} steps: as "
                "many as the optimizer steps, one by one. A norm or a sum is had from the shards and one all-reduce; "
                "what must be whole, gather for a checkpoint or an export only."
            )
            yield self.finding(whole[0][0], message)


class FsdpStateChangedByReading(Rule):
    """To have optimizer state to return, the getters let an optimizer that never stepped take a step of nothing."""

    code = "FS904"
    name = "fsdp-state-changed-by-reading"
    severity = Severity.WARN
    clause = 11

    def check(self, trace: Trace) -> Iterator[Finding]:
        for taken in trace.of(StateTaken):
            if taken.when.loop and taken.when.path:
                continue  # under a condition in a loop, it may never be read in the first round
            for optimizer in taken.of if taken.via is Via.HELPER else ():
                if not self._fresh(trace, taken, optimizer) or not self._matters(trace, taken, optimizer):
                    continue
                message = (
                    f"reading the state of `{optimizer.name}` before its first step makes it count a step that it "
                    "did not take: its first real update is another than in a run that does not read it. Save after a "
                    "step, or leave the optimizer out of a save before the first."
                )
                yield self.finding(taken, message)

    def _fresh(self, trace: Trace, taken: StateTaken, optimizer: Ref) -> bool:
        """Whether it is an optimizer that counts its steps and has not taken or been given any."""
        built = [b for b in trace.before(taken, OptimizerBuilt) if b.optimizer == optimizer]
        if not built or any(b.cls.rpartition(".")[2] not in _COUNTING for b in built) or trace.escaped(optimizer):
            return False
        return not has_state(trace, optimizer, taken)

    def _matters(self, trace: Trace, taken: StateTaken, optimizer: Ref) -> bool:
        """Whether it steps later, and nothing is loaded in between, which would put its count right."""
        first = next((s for s in trace.after(taken, Stepped) if s.optimizer == optimizer), None)
        if first is None:
            return False
        return not (
            any(optimizer in applied.to for applied in trace.after(taken, StateApplied))
            or any(self._may_load(loaded, optimizer) for loaded in trace.after(taken, Loaded))
        )

    def _may_load(self, loaded: Loaded, optimizer: Ref) -> bool:
        if loaded.entries is None:
            return True
        return any(e.of == optimizer or (e.of is None and e.kind is not Kind.VALUE) for e in loaded.entries)


class UnsafeUnpickling(Rule):
    """A pickle is a program: whoever wrote the file decides what runs when it is loaded."""

    code = "FS903"
    name = "unsafe-unpickling"
    severity = Severity.WARN
    clause = 7
    seen_by = frozenset({READER})

    def check(self, trace: Trace) -> Iterator[Finding]:
        for loaded in trace.of(TorchLoaded):
            if loaded.weights_only is not False or loaded.foreign is not True:
                continue
            file = f"`{loaded.target}`" if loaded.target is not None else "this file"
            message = (
                f"{file} is not written by this program, and weights_only=False runs whatever code is in it. Leave "
                "weights_only out (it is True from torch 2.6 on); name what else the file holds by "
                "torch.serialization.add_safe_globals."
            )
            yield self.finding(loaded, message)
