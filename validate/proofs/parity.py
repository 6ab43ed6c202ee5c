"""The proof `parity`: several ranks compute what one process computes.

The same command line runs on one rank, and at each step the loss, as its mean over the ranks, and the norm of the whole
gradient must be those of the straight run up to rounding. Dropout is off in both, as its masks come from the ranks'
own generators. What a generated script writes to its log must be what its ranks computed.
"""

from __future__ import annotations

from typing import Any

from ..events import Sharded
from ..header import Header
from ..report import plural
from .base import DoesNotApply, Proof, Verdict
from .bench import Bench, Straight
from .topology import on
from .totals import TOLERANCE, Comparison, compare, misreported, totals


class Parity(Proof):
    """Compares the straight run with one on a single rank."""

    name = "parity"
    claim = "W ranks compute what one process computes"

    def prove(self, bench: Bench) -> Verdict:
        bench.straight.trained()
        if bench.subject.nproc == 1:
            raise DoesNotApply("the run is on one rank already; expected --nproc 2 or more")
        same = bench.without_dropout
        steps = same.straight.trained()
        own, precision = totals(same.straight.measured), computed_in(same.straight)
        if told := misreported(same.straight.logged, own, compare(own, own, precision=precision).tolerance):
            return Verdict(name=self.name, status="fail", reason=told)
        alone = on(bench.subject, 1)
        ran = same.run(same.place(), topology=alone)
        if ran.broken:
            raise DoesNotApply(f"{bench.subject.script.name} does not run on one rank: {ran.broken}")
        found = compare(own, totals(ran.measured), precision=precision)
        figures = as_figures(found) | {"dropout_off": same is not bench}
        if found.apart is not None:
            where = f"the first difference is the {found.apart}, on {plural(bench.subject.nproc, 'rank')} and on one"
            promised = found.other_samples and _draws_by_step_alone(bench.subject.header)
            if found.excuse is not None and not promised:
                raise DoesNotApply(f"{where}, which cannot be compared: {found.excuse}")
            because = f", for {found.excuse}" if promised else ""
            return Verdict(name=self.name, status="fail", reason=where + because, figures=figures)
        if found.steps != steps:
            raise DoesNotApply(f"one rank takes {plural(found.steps, 'step')} where the straight run takes {steps}")
        dropout = "" if same is bench else ", with dropout off"
        reason = f"one rank computes the same{dropout}: {in_words(found)}"
        return Verdict(name=self.name, status="pass", figures=figures, reason=reason)


def _draws_by_step_alone(header: Header | None) -> bool:
    """Whether a script was generated, and with data of which each step's samples are the same on any ranks."""
    return header is not None and ":" not in header.answers.get("dataset", "")


def computed_in(straight: Straight) -> str | None:
    """The least precise dtype that parameters are cast to for computing, None where there is no such policy."""
    policies = [e.precision.param for t in straight.traces for e in t.of(Sharded) if e.precision is not None]
    return max((p for p in policies if p is not None), key=lambda p: TOLERANCE.get(p, (1.0, 1.0)), default=None)


def as_figures(found: Comparison) -> dict[str, Any]:
    """A comparison as figures of a verdict."""
    return {
        "steps_compared": found.steps,
        "max_loss_difference": found.loss,
        "max_grad_norm_difference": found.grad_norm,
        "loss_tolerance": found.tolerance[0],
        "grad_norm_tolerance": found.tolerance[1],
        "first_difference": None if found.apart is None else vars(found.apart),
    }


def in_words(found: Comparison) -> str:
    """A comparison that holds, in words."""
    norms = (
        ""
        if found.grad_norm is None
        else f", gradient norms by at most {found.grad_norm:.1g} of {found.tolerance[1]:g}"
    )
    return (
        f"losses of {plural(found.steps, 'step')} differ by at most {found.loss:.1g} of {found.tolerance[0]:g} "
        f"(relative){norms}"
    )
