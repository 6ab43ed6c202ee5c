"""FS4: gradients in the training loop, from backward to step."""

from __future__ import annotations

from collections.abc import Iterator

from ..events import (
    Backward,
    CollectiveCalled,
    ForwardEntered,
    GradientsClipped,
    GradientsScaled,
    GradientSyncSet,
    OptimizerBuilt,
    Parallelised,
    PartialRead,
    Ref,
    Sharded,
    Stepped,
)
from ..findings import Finding, Severity
from ..trace import Trace, implied
from .base import PROBE, READER, Rule


class GradientSyncLeftOff(Rule):
    """Without gradient sync a backward only adds up; the one before a step must reduce what was added up."""

    code = "FS405"
    name = "gradient-sync-left-off"
    severity = Severity.ERROR
    clause = 6

    def check(self, trace: Trace) -> Iterator[Finding]:
        for stepped in trace.of(Stepped):
            backwards = list(trace.before(stepped, Backward))
            if not backwards:
                continue
            last = backwards[-1]
            if any(s.optimizer == stepped.optimizer for s in trace.between(last, stepped, Stepped)):
                continue
            off = self._left_off(trace, last, stepped)
            if off is None:
                continue
            name = off.module.name
            message = (
                f"gradient sync of `{name}` is off in the last backward before this step: no gradient is reduced, "
                f"and the step has none to apply. Call {name}.set_requires_gradient_sync(True) before the last "
                "micro-batch's backward."
            )
            yield self.finding(stepped, message, (off, "turned off here"), (last, "last backward"))

    def _left_off(self, trace: Trace, last: Backward, stepped: Stepped) -> GradientSyncSet | None:
        """What turned sync off for the last backward before the step, where nothing may have turned it on again."""
        before = [s for s in trace.before(last, GradientSyncSet) if self._concerns(trace, s.module, stepped)]
        off = before[-1] if before else None
        if off is None or off.on is not False or trace.escaped(off.module, since=off):
            return None
        every = [s for s in trace.of(GradientSyncSet) if trace.related(s.module, off.module)]
        if implied(off, last) and implied(off, stepped):
            return off
        # Under a condition of its own: it is left off wherever that holds, if it is never turned on.
        return off if all(s.on is False for s in every) else None

    def _concerns(self, trace: Trace, module: Ref, stepped: Stepped) -> bool:
        """Whether the optimizer steps parameters of the module, as far as is known."""
        built = [b for b in trace.before(stepped, OptimizerBuilt) if b.optimizer == stepped.optimizer]
        modules = [m for b in built for m in b.modules]
        return not modules or any(trace.related(module, m) for m in modules)


class PartialTensorRead(Rule):
    """A reduction over a sharded tensor stays partial until it is needed whole; `.item()` reads this rank's part."""

    code = "FS406"
    name = "partial-tensor-read"
    severity = Severity.ERROR
    clause = 6

    def check(self, trace: Trace) -> Iterator[Finding]:
        for read in trace.of(PartialRead):
            if self._reduced_later(trace, read) or trace.escaped(read.value, since=read):
                continue
            if any(read.value in scaled.by for scaled in trace.after(read, GradientsScaled)):
                continue  # the clipping by it is another rule's
            message = (
                f"`{read.value.name}` is computed from sharded tensors and still waits for its reduction: read as a "
                "plain number it is that of this rank's part, smaller and another one on each rank. Call "
                ".full_tensor() on every rank first."
            )
            yield self.finding(read, message)

    def _reduced_later(self, trace: Trace, read: PartialRead) -> bool:
        """Whether the program reduces the number itself; of a run it can only be told that something is reduced."""
        later = list(trace.after(read, CollectiveCalled))
        if trace.origin == PROBE:
            end = next(trace.after(read, Backward), None)
            return any(c.op in _REDUCES and (end is None or c.order < end.order) for c in later)
        return any(read.value in c.of for c in later)


_REDUCES = frozenset({"all_reduce", "reduce", "all_gather", "all_gather_object", "gather", "gather_object"})


class ClippingByLocalNorm(Rule):
    """Each rank's norm of its own shards is another one, so that each scales its part of one gradient differently."""

    code = "FS407"
    name = "clipping-by-local-norm"
    severity = Severity.ERROR
    clause = 6
    seen_by = frozenset({READER})

    def check(self, trace: Trace) -> Iterator[Finding]:
        for scaled in trace.of(GradientsScaled):
            reads = [r for r in trace.before(scaled, PartialRead) if r.value in scaled.by]
            if any(set(c.of) & set(scaled.by) for c in trace.of(CollectiveCalled)) or any(
                trace.escaped(number) for number in scaled.by
            ):
                continue
            message = (
                "the gradients are scaled by a number that each rank computes from its own shards: it is too large a "
                "factor, and another one on each rank. Call torch.nn.utils.clip_grad_norm_, or reduce the norm over "
                "the ranks first."
            )
            yield self.finding(scaled, message, *((r, "read here") for r in reads[:1]))


class ClippingOverMixedMeshes(Rule):
    """The norms of all gradients are put into one tensor, and those of two meshes do not fit into one."""

    code = "FS408"
    name = "clipping-over-mixed-meshes"
    severity = Severity.ERROR
    clause = 6

    def check(self, trace: Trace) -> Iterator[Finding]:
        for clipped in trace.of(GradientsClipped):
            if clipped.mixed is not True or any(trace.escaped(module) for module in clipped.modules):
                continue
            before = trace.before(clipped, Parallelised)
            split = next((p for p in before if any(trace.related(p.module, m) for m in clipped.modules)), None)
            message = (
                "the gradients that are clipped here lie on more than one mesh, or some on none, as do those of "
                "parameters that a plan of tensor parallelism leaves out: clip_grad_norm_ raises RuntimeError. Name "
                "every module with parameters in the plan (SequenceParallel() keeps a norm whole on its mesh), or take "
                "the norm of each mesh's gradients and combine them."
            )
            yield self.finding(clipped, message, (split, "the plan"))


class LocalTokenMean(Rule):
    """The mean over ranks of means over their own tokens is none over all tokens, unless all ranks have as many."""

    code = "FS410"
    name = "local-token-mean"
    severity = Severity.WARN
    clause = 6

    def check(self, trace: Trace) -> Iterator[Finding]:
        for backward in trace.of(Backward):
            if backward.counted_alone is not True:
                continue
            entered = next((e for e in reversed([*trace.before(backward, ForwardEntered)]) if e.sharded), None)
            if entered is None or trace.escaped(entered.module):
                continue
            message = (
                "this loss is a mean over the tokens that a mask leaves on this rank, and FSDP averages the gradients "
                "of ranks that have more of them and of ranks that have fewer: a token weighs the less, the more there "
                "are beside it. Divide the sum of the losses by the count of all ranks (dist.all_reduce), and multiply "
                "by their number."
            )
            yield self.finding(backward, message, (entered, "the forward"))


class LossReducedBeforeBackward(Rule):
    """`all_reduce` is no operation that autograd knows: what is divided by the number of ranks divides the gradient."""

    code = "FS409"
    name = "loss-reduced-before-backward"
    severity = Severity.ERROR
    clause = 6

    def check(self, trace: Trace) -> Iterator[Finding]:
        for backward in trace.of(Backward) if any(trace.of(Sharded)) else ():
            reduced = next((c for c in trace.before(backward, CollectiveCalled) if set(c.of) & set(backward.of)), None)
            if reduced is None:
                continue
            message = (
                "this loss was reduced over the ranks before backward, which autograd does not see: dividing it by "
                "their number divides the gradient, which FSDP averages anyway. Call backward on the local loss, and "
                "reduce a detached copy for the log."
            )
            yield self.finding(backward, message, (reduced, "reduced here"))
