"""What only a run shows: that the ranks part, that nothing is updated, what differs, what is rounded."""

from __future__ import annotations

from collections.abc import Iterator

from ..events import (
    AsyncSaved,
    Backward,
    Event,
    ForwardEntered,
    GradientsCleared,
    Kind,
    Loaded,
    ModuleBuilt,
    OptimizerBuilt,
    RanksParted,
    Ref,
    Saved,
    Stepped,
)
from ..findings import Finding, Severity
from ..trace import Trace
from .base import PROBE, Rule, listed
from .loop import GradientSyncLeftOff
from .numbers import CastAfterSharding, LowPrecisionMasters
from .optimizer import OptimizerBeforeSharding, OptimizerOverUnshardedParameters


class RanksDiverge(Rule):
    """Each call of a sharded module gathers it together with what the other ranks call at the same time."""

    code = "FS106"
    name = "ranks-diverge"
    severity = Severity.ERROR
    clause = 1
    seen_by = frozenset({PROBE})

    def check(self, trace: Trace) -> Iterator[Finding]:
        for parted in trace.of(RanksParted):
            message = (
                f"rank {parted.when.rank} calls `{parted.module.name}`, and the other ranks do not: {parted.instead} "
                "in its place. Ranks gather parameters in the order of their calls, so that one is given parts of "
                "another's, or waits for ever. Call the same modules in the same order on all ranks, with inputs that "
                "do not count where a rank has none."
            )
            entered = next((e for e in trace.of(ForwardEntered) if e.order == parted.order), None)
            yield self.finding(parted, message, (entered, "in this call"))


class UpdatesNothing(Rule):
    """A step that leaves all weights as they were: whatever the loss does, the model is the one that it began as."""

    code = "FS414"
    name = "updates-nothing"
    severity = Severity.ERROR
    clause = 4
    seen_by = frozenset({PROBE})

    def check(self, trace: Trace) -> Iterator[Finding]:
        steps: dict[int, list[Stepped]] = {}
        for stepped in trace.of(Stepped):
            steps.setdefault(stepped.optimizer.id, []).append(stepped)
        for own in steps.values():
            if any(s.changed for s in own):
                continue
            first = next((s for s in own if s.changed is False and self._trained(trace, s)), None)
            if first is None or any(any(rule.check(trace)) for rule in _CAUSES):
                continue
            last = [*trace.before(first, Backward)][-1]
            cleared = [*trace.between(last, first, GradientsCleared)]
            name = first.optimizer.name
            if first.gradients:
                why = (
                    "the gradients are all zero, or what they come to is rounded away. Look at the loss, at what of "
                    "the model it depends on, and at the dtype of the weights"
                )
            elif cleared:
                why = "the gradients are cleared between backward and the step. Clear them after it"
            else:
                why = (
                    "no parameter that it was given has a gradient. Build it over model.parameters() once these are "
                    "not replaced any more (fully_shard, to_empty, load_state_dict with assign=True), and step it "
                    "after backward"
                )
            related: tuple[Event, str] = (last, "the backward before it")
            if cleared:
                related = (cleared[-1], "cleared here")
            yield self.finding(first, f"no step of `{name}` changes a weight: {why}.", related)

    def _trained(self, trace: Trace, stepped: Stepped) -> bool:
        """Whether something was differentiated since the step before."""
        earlier = [s for s in trace.before(stepped, Stepped) if s.optimizer == stepped.optimizer]
        return any(trace.between(earlier[-1], stepped, Backward) if earlier else trace.before(stepped, Backward))


_CAUSES = (
    OptimizerBeforeSharding(),
    OptimizerOverUnshardedParameters(),
    GradientSyncLeftOff(),
    CastAfterSharding(),
    LowPrecisionMasters(),
)


class BuffersDifferAcrossRanks(Rule):
    """FSDP2 keeps no buffer in step: each rank's is of its own samples, and a checkpoint holds one rank's."""

    code = "FS506"
    name = "buffers-differ-across-ranks"
    severity = Severity.WARN
    clause = 6
    seen_by = frozenset({PROBE})

    def check(self, trace: Trace) -> Iterator[Finding]:
        told = set[int]()
        for saved in trace.of(Saved, AsyncSaved):
            for entry in saved.entries or ():
                if saved.alone or not entry.apart or entry.of is None or entry.of.id in told:
                    continue
                told.add(entry.of.id)
                built = next((b for b in trace.before(saved, ModuleBuilt) if b.module == entry.of), None)
                message = (
                    f"buffers of `{entry.of.name}` differ from rank to rank ({listed(entry.apart)}), and the "
                    "checkpoint keeps those of one rank: what a restarted run or an evaluation gets is chance. Use "
                    "SyncBatchNorm, broadcast or average the buffers before saving, or register them with "
                    "persistent=False if each rank computes its own."
                )
                yield self.finding(saved, message, (built, "built here"))


class PrecisionLostOnLoad(Rule):
    """DCP copies into the tensors that it is given, and rounds to their dtype without a word."""

    code = "FS711"
    name = "precision-lost-on-load"
    severity = Severity.WARN
    clause = 11
    seen_by = frozenset({PROBE})

    def check(self, trace: Trace) -> Iterator[Finding]:
        for loaded in trace.of(Loaded):
            for entry in loaded.entries or ():
                of, what = entry.of, entry.narrowed
                if of is None or what is None:
                    continue
                built = self._trained(trace, entry.kind, of, loaded)
                if built is None:
                    continue
                message = (
                    f"the checkpoint has `{of.name}` in {what.stored} ({listed(what.names)}), and it is loaded into "
                    f"{what.into}, and trained on: what the shorter dtype does not hold is gone, so that the run does "
                    f"not continue the one that was saved. Load into {what.stored}; compute in {what.into} by "
                    "MixedPrecisionPolicy."
                )
                yield self.finding(loaded, message, (built, "trained by this optimizer"))
                break

    def _trained(self, trace: Trace, kind: Kind, of: Ref, loaded: Loaded) -> OptimizerBuilt | None:
        """What trains, after the load, a model whose state was loaded, or the optimizer whose state was."""
        stepping = {s.optimizer for s in trace.after(loaded, Stepped)}
        for built in trace.of(OptimizerBuilt):
            own = kind is Kind.OPTIMIZER and built.optimizer == of
            model = kind is Kind.MODEL and any(trace.related(m, of) for m in built.modules)
            if built.optimizer in stepping and (own or model):
                return built
        return None
