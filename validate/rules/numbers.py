"""FS2: in which precision parameters are kept."""

from __future__ import annotations

from collections.abc import Iterator

from ..events import Cast, OptimizerBuilt, Ref, Sharded
from ..findings import Finding, Severity
from ..trace import Trace, implied
from .base import Rule

_LOW = {"bfloat16", "float16"}
_POLICY = "fully_shard(..., mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))"


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
            message = (
                f"`{cast.module.name}` is cast to {cast.dtype} after fully_shard, which casts the sharded parameters "
                f"that the optimizer steps: small updates round to nothing. Keep them in float32 and pass {_POLICY}."
            )
            yield self.finding(cast, message, (sharded, "sharded here, earlier"))


class LowPrecisionMasters(Rule):
    """In bfloat16 a step of less than about a 256th of a weight leaves it as it was."""

    code = "FS206"
    name = "low-precision-masters"
    severity = Severity.ERROR
    clause = 4

    def check(self, trace: Trace) -> Iterator[Finding]:
        for built in trace.of(OptimizerBuilt):
            if built.dtype not in _LOW or built.cls not in ("Adam", "AdamW"):
                continue
            sharded = [s for s in trace.of(Sharded) if any(trace.related(s.module, m) for m in built.modules)]
            casts = [
                c
                for c in trace.before(built, Cast)
                if c.dtype == built.dtype and any(trace.related(c.module, m) for m in built.modules)
            ]
            if not sharded or any(_sharded_before(trace, cast) for cast in casts):
                continue
            message = (
                f"{built.cls} steps sharded parameters that are kept in {built.dtype}, and keeps its moments in it: "
                f"updates that are small against a weight round to nothing. Keep them in float32 and pass {_POLICY}."
            )
            yield self.finding(built, message, *[(cast, "cast here") for cast in casts[-1:]])


def _sharded_before(trace: Trace, cast: Cast) -> Sharded | None:
    """The call of `fully_shard` after which the cast comes, whatever branches are taken."""
    return next(
        (s for s in trace.before(cast, Sharded) if trace.related(s.module, cast.module) and implied(s, cast)), None
    )


def _trained(trace: Trace, cast: Cast) -> Iterator[Ref]:
    """The modules whose parameters an optimizer is given, before the cast or after it."""
    for built in (*trace.before(cast, OptimizerBuilt), *trace.after(cast, OptimizerBuilt)):
        yield from built.modules
