"""FS2: in which precision parameters are kept."""

from __future__ import annotations

from collections.abc import Iterator

from ..events import Backward, Cast, OptimizerBuilt, Ref, Sharded, Stepped
from ..findings import Finding, Severity
from ..trace import Trace, implied, together
from .base import Rule, in_tests

_LOW = {"bfloat16", "float16"}
_POLICY = "fully_shard(..., mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32))"


class CastAfterSharding(Rule):
    """A cast reaches the sharded parameters themselves, which the optimizer steps, not only what is computed with."""

    code = "FS205"
    name = "cast-after-sharding"
    severity = Severity.ERROR
    clause = 2

    def check(self, trace: Trace) -> Iterator[Finding]:
        for cast in trace.of(Cast):
            sharded = _sharded_before(trace, cast)
            if cast.dtype not in _LOW or sharded is None:
                continue
            if not any(trace.related(m, cast.module) for m in _trained(trace, cast)):
                continue
            if self._is_done(trace, cast):
                continue
            message = (
                f"`{cast.module.name}` is cast to {cast.dtype} after fully_shard, which casts the sharded parameters "
                f"that the optimizer steps: small updates round to nothing. Keep them in float32 and pass {_POLICY}."
            )
            yield self.finding(cast, message, (sharded, "sharded here, earlier"))

    def _is_done(self, trace: Trace, cast: Cast) -> bool:
        """Whether what is cast was trained before and is not any more: it is exported, or evaluated."""
        built = (o for o in trace.of(OptimizerBuilt) if any(trace.related(m, cast.module) for m in o.modules))
        optimizers = {o.optimizer for o in built}
        orders = [stepped.order for stepped in trace.of(Stepped) if stepped.optimizer in optimizers]
        return bool(orders) and max(orders) < cast.order


class LowPrecisionMasters(Rule):
    """In bfloat16 a step of less than about a 256th of a weight leaves it as it was."""

    code = "FS206"
    name = "low-precision-masters"
    severity = Severity.ERROR
    clause = 4

    def check(self, trace: Trace) -> Iterator[Finding]:
        for built in trace.of(OptimizerBuilt):
            if built.dtype not in _LOW or built.cls not in ("Adam", "AdamW") or in_tests(built):
                continue
            sharded = [s for s in trace.of(Sharded) if any(trace.related(s.module, m) for m in built.modules)]
            every = [
                c
                for c in trace.of(Cast)
                if c.dtype == built.dtype and any(trace.related(c.module, m) for m in built.modules)
            ]
            casts = [c for c in every if c.order < built.order and together(c, built)]
            if not sharded or any(_sharded_before(trace, cast) for cast in casts):
                continue
            if every and not casts and every[0].order < built.order:
                continue  # one way of the program trains, the other casts
            message = (
                f"{built.cls} steps sharded parameters that are kept in {built.dtype}, and keeps its moments in it: "
                f"updates that are small against a weight round to nothing. Keep them in float32 and pass {_POLICY}."
            )
            yield self.finding(built, message, *[(cast, "cast here") for cast in casts[-1:]])


class ReductionInLowPrecision(Rule):
    """Where a policy says nothing of it, gradients are summed over the ranks in the dtype they are computed in."""

    code = "FS412"
    name = "reduction-in-low-precision"
    severity = Severity.WARN
    clause = 6

    def check(self, trace: Trace) -> Iterator[Finding]:
        low = [s for s in trace.of(Sharded) if s.precision and s.precision.param in _LOW and not s.precision.reduce]
        for sharded in low:
            module = sharded.module
            if in_tests(sharded) or any(trace.inside(module, other.module) for other in low):
                continue  # the root's finding is that of its blocks
            built = trace.after(sharded, OptimizerBuilt)
            if not any(trace.related(module, m) for b in built for m in b.modules):
                continue
            dtype = sharded.precision.param if sharded.precision else ""
            message = (
                f"the policy of `{module.name}` has param_dtype={dtype} and no reduce_dtype, so gradients are summed "
                f"over the ranks in {dtype} too: what is small beside the sum is lost, more so with more ranks. "
                f"Pass MixedPrecisionPolicy(param_dtype=torch.{dtype}, reduce_dtype=torch.float32)."
            )
            yield self.finding(sharded, message)
        lossy = next((backward for backward in trace.of(Backward) if backward.low), None)
        if lossy is not None:
            message = (
                f"the cross entropy is taken and averaged in {lossy.low}, in which a loss near 11 is rounded to a "
                "hundredth, or a sixteenth. Cast the logits first: cross_entropy(logits.float(), targets)."
            )
            yield self.finding(lossy, message)


def _sharded_before(trace: Trace, cast: Cast) -> Sharded | None:
    """The call of `fully_shard` after which the cast comes, whatever branches are taken."""
    return next(
        (s for s in trace.before(cast, Sharded) if trace.related(s.module, cast.module) and implied(s, cast)), None
    )


def _trained(trace: Trace, cast: Cast) -> Iterator[Ref]:
    """The modules whose parameters an optimizer is given, before the cast or after it."""
    for built in (*trace.before(cast, OptimizerBuilt), *trace.after(cast, OptimizerBuilt)):
        yield from built.modules
