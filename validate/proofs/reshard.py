"""The proof `reshard`: another topology continues the same run.

The script is killed one step after a checkpoint, as by `resume`. The same command line continues on other ranks. What
it has loaded when its first step begins must be the state that was saved, tensor by tensor and bit for bit: parameters,
optimizer state, persistent buffers, and sharded weights beside these that change as they do, such as an average. What
it then computes must be what the straight run computes, up to rounding: the loss as its mean over the ranks, the norm
of the whole gradient, and the learning rate. Dropout is off in all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import UserError
from ..findings import Finding
from ..probe.whole import differences, whole_state
from ..report import plural
from .base import CannotProve, DoesNotApply, Proof, Verdict
from .bench import Bench, Ran, Stopped
from .parity import as_figures, computed_in, in_words
from .resume import carried, first_difference
from .topology import Topology, targets
from .totals import compare, totals

SHOWN = 3  # tensors named of those that differ


@dataclass(frozen=True, kw_only=True)
class Target:
    """What came of one topology: `status` as of a verdict, `reason` a sentence without its subject."""

    topology: Topology
    status: str
    reason: str
    figures: dict[str, Any]
    findings: tuple[Finding, ...] = ()


class Reshard(Proof):
    """Continues a stopped run on other ranks."""

    name = "reshard"
    claim = "another topology continues the same run"

    def prove(self, bench: Bench) -> Verdict:
        bench.straight.checkpoint_between()
        places = targets(bench)
        same = bench.without_dropout
        stopped = same.stopped
        if stopped.broken:
            raise CannotProve(f"of a second run of the same command line, {stopped.broken}; `resume` fails by that")
        found = [self._continue(same, stopped, topology) for topology in places]
        figures: dict[str, Any] = {
            "stopped_after_step": stopped.saved + 1,
            "resumed_from_step": stopped.saved,
            "dropout_off": same is not bench,
            "targets": [
                {
                    "nproc": target.topology.nproc,
                    "mesh": target.topology.mesh,
                    "status": target.status,
                    "reason": target.reason,
                    **target.figures,
                }
                for target in found
            ],
        }
        reason = "; ".join(f"on {target.topology} {target.reason}" for target in found)
        by_status = {target.status for target in found}
        if by_status == {"skip"}:
            asked = bench.subject.to_nproc is not None or bench.subject.to_mesh is not None
            raise (CannotProve if asked else DoesNotApply)(f"{bench.subject.script.name}: {reason}")
        return Verdict(
            name=self.name,
            status="fail" if "fail" in by_status else "pass",
            reason=f"from step {stopped.saved} of {plural(bench.subject.nproc, 'rank')}: {reason}",
            figures=figures,
            findings=tuple(dict.fromkeys(f for target in found for f in target.findings)),
        )

    def _continue(self, bench: Bench, stopped: Stopped, topology: Topology) -> Target:
        ran = bench.run(
            bench.copy(stopped.place), stop_after=bench.left(stopped.saved), whole_after=0, topology=topology
        )
        if ran.broken:
            return self._broken(bench, topology, ran, ran.judged.findings)
        status, reason, figures = _judged(bench, stopped, ran)
        findings = ran.judged.findings if status == "fail" else ()
        return Target(topology=topology, status=status, reason=reason, figures=figures, findings=findings)

    def _broken(self, bench: Bench, topology: Topology, ran: Ran, findings: Sequence[Finding]) -> Target:
        """A script need not run on every topology; where it does run from scratch, it should go on there too."""
        fresh = bench.run(bench.place(), stop_after=1, topology=topology)
        try:
            refused = fresh.broken
        except UserError as error:
            refused = str(error)
        if refused is not None:
            return Target(topology=topology, status="skip", reason=f"it does not run at all: {refused}", figures={})
        reason = f"it cannot continue, though it runs there from scratch: {ran.broken}"
        return Target(topology=topology, status="fail", reason=reason, figures=ran.hang, findings=tuple(findings))


def _judged(bench: Bench, stopped: Stopped, ran: Ran) -> tuple[str, str, dict[str, Any]]:
    """Status, reason and figures of a run that has continued on other ranks."""
    straight, saved = bench.straight, stopped.saved
    left = straight.steps - saved
    took = ran.steps
    figures: dict[str, Any] = {"steps_after_resuming": took, "steps_expected": left}
    if took != left:
        began = "it starts over" if took == straight.steps else f"it takes {plural(took, 'step')}"
        return "fail", f"{began} where {left} were left after the checkpoint of step {saved}", figures
    loaded = whole_state(ran.run)
    assert loaded is not None, "it has stepped"
    beside = set[str]().union(*carried(straight.measured, straight.traces))
    lost = list(differences(stopped.state, loaded, beside))
    tensors = stopped.state.count(beside)
    figures |= {"tensors": tensors, "tensors_that_differ": [f"{name} ({group}) {how}" for group, name, how in lost]}
    if lost:
        shown = ", ".join(f"`{name}` ({group}) {how}" for group, name, how in lost[:SHOWN])
        more = f" and {len(lost) - SHOWN} more" if len(lost) > SHOWN else ""
        return "fail", f"what it loads is not what was saved: of {plural(tensors, 'tensor')}, {shown}{more}", figures
    equal = f"{plural(tensors, 'tensor')} equal bit for bit after loading"
    if first_difference(straight.measured, stopped.measured, offset=0):
        return "pass", f"{equal}; losses are not compared, as two runs on the same ranks differ already", figures
    precision = computed_in(straight)
    found = compare(totals(straight.measured), totals(ran.measured), offset=saved, precision=precision)
    figures |= as_figures(found)
    if found.apart is None:
        return "pass", f"{equal}, {in_words(found)}", figures
    if found.excuse is not None:
        return "pass", f"{equal}; losses cannot be compared: {found.excuse}", figures
    ranks = f"{plural(bench.subject.nproc, 'rank')} and {ran.run.job.nproc}"
    return "fail", f"{equal}, but it goes on otherwise: the {found.apart}, on {ranks}", figures
