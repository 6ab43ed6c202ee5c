"""The proof `resume`: stop and go equals never stopping, bit for bit.

The script runs once to its end. It runs again in a fresh place, and every rank is killed one step after a checkpoint.
The same command line then runs to its end, and what the probe measured at each of its steps must equal the straight
run's: losses, gradient norms, learning rates, parameters, optimizer state and persistent buffers, on every rank; and so
must the weights that the script keeps beside them, such as an average.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

from ..events import AsyncSaved, Loaded, Saved, StateTaken, TorchLoaded
from ..findings import Finding
from ..probe.figures import StepFigures
from ..report import plural
from ..trace import Trace
from .base import Proof, Verdict
from .bench import Bench, Measured, Straight
from .observed import losses


@dataclass(frozen=True)
class Difference:
    """The first place where two runs differ: at which step of the straight run, on which rank, in what, and how."""

    step: int
    rank: int
    quantity: str
    straight: str
    resumed: str

    def __str__(self) -> str:
        return (
            f"{self.quantity} of step {self.step} on rank {self.rank}: "
            f"{self.straight} without stopping, {self.resumed} after resuming"
        )


class Resume(Proof):
    """Stops the script one step after a checkpoint and compares what follows."""

    name = "resume"
    claim = "stop and go equals never stopping"

    def prove(self, bench: Bench) -> Verdict:
        straight = bench.straight
        steps = straight.steps
        if not any(0 < s < steps for s in straight.saved_after()):
            return self._restart(bench, straight, straight.measured, steps)
        return self._stop_and_go(bench, straight, steps)

    def _stop_and_go(self, bench: Bench, straight: Straight, steps: int) -> Verdict:
        whole, stopped = straight.measured, bench.stopped
        saved = stopped.saved
        figures: dict[str, Any] = {"steps": steps, "stopped_after_step": saved + 1, "resumed_from_step": saved}
        if stopped.broken:
            return self._fail(f"of a second run of the same command line, {stopped.broken}", figures | stopped.hang)
        if difference := first_difference(whole, stopped.measured, offset=0):
            figures["first_difference"] = vars(difference)
            return self._fail(f"two runs from scratch differ, so no resume can be exact: {difference}", figures)

        resumed = bench.run(bench.copy(stopped.place), stop_after=bench.left(saved))
        findings = resumed.judged.findings  # a load is seen only here: the straight run had nothing to load
        if resumed.broken:
            how = f"killed after step {saved + 1} and started again, {resumed.broken}"
            return self._fail(how, figures | resumed.hang, findings)
        after, took = resumed.measured, resumed.steps
        figures["losses"] = losses(after, offset=saved)
        figures |= {"steps_after_resuming": took, "steps_expected": steps - saved}
        parts: list[str] = []
        if took != steps - saved:
            began = "it started over" if took == steps else f"it took {plural(took, 'step')}"
            parts.append(f"{began} where {steps - saved} were left after the checkpoint of step {saved}")
        if not any(trace.of(Loaded, TorchLoaded) for trace in resumed.traces):
            parts.append("it loaded nothing; expected the same command line to go on (does it need a flag for that?)")
        if lost := restored_difference(whole, after, saved):
            figures["lost"] = lost
            parts.append(lost)
        names = carried(whole, straight.traces)
        figures["carried"] = sorted(set[str]().union(*names))
        if forgotten := carried_difference(whole, after, saved, names):
            parts.append(forgotten)
        if took == steps - saved:
            figures["max_loss_difference"] = max_loss_difference(whole, after, saved)
            if difference := first_difference(whole, after, offset=saved):
                figures["first_difference"] = vars(difference)
                parts.append(f"the first difference is the {difference}")
        if parts:
            stopped_at = f"killed after step {saved + 1} of {steps} and resumed from step {saved}"
            return self._fail(f"{stopped_at}: {'; '.join(parts)}", figures, findings)
        reason = (
            f"killed after step {saved + 1} of {steps}, resumed from step {saved}: losses, gradient norms, learning "
            f"rates, parameters, optimizer state and buffers of the {plural(took, 'step')} that follow are equal bit "
            f"for bit on {plural(len(after), 'rank')}"
        )
        return Verdict(name=self.name, status="pass", reason=reason, figures=figures)

    def _restart(self, bench: Bench, straight: Straight, whole: Measured, steps: int) -> Verdict:
        """For a script whose only checkpoint is its last state: what a restart begins with must be what was saved."""
        figures: dict[str, Any] = {"steps": steps, "resumed_from_step": steps}
        again = bench.run(straight.place)
        findings = again.judged.findings
        if again.broken:
            return self._fail(f"started again after its end, {again.broken}", figures, findings)
        if again.measured[0] and (lost := restored_difference(whole, again.measured, steps)):
            figures["lost"] = lost
            return self._fail(f"started again after its end, {lost}", figures, findings)
        straight.checkpoint_between()  # says that there is none
        raise AssertionError("there is a checkpoint in the middle")

    def _fail(self, reason: str, figures: dict[str, Any], findings: Sequence[Finding] = ()) -> Verdict:
        return Verdict(name=self.name, status="fail", reason=reason, figures=figures, findings=tuple(findings))


def first_difference(straight: Measured, other: Measured, *, offset: int) -> Difference | None:
    """The first step at which a run differs from the straight one, whose step `offset` + k is its step k."""
    pairs = []
    for rank, (ours, theirs) in enumerate(zip(straight, other, strict=True)):
        by_step = {f.step: f for f in ours if f.step > 0}
        pairs += [
            (f.step + offset, rank, by_step[f.step + offset], f)
            for f in theirs
            if f.step + offset in by_step and f.step > 0
        ]
    for step, rank, one, two in sorted(pairs, key=lambda p: p[:2]):
        for quantity, a, b in _quantities(one, two):
            if a != b:
                return Difference(step, rank, quantity, a, b)
    return None


def restored_difference(straight: Measured, resumed: Measured, saved: int) -> str | None:
    """What the resumed run began with other than the straight run had after step `saved`; None when it is the same."""
    for rank, (ours, theirs) in enumerate(zip(straight, resumed, strict=True)):
        then = next((f for f in ours if f.step == saved), None)
        now = next((f for f in theirs if f.step == 0), None)
        if then is None or now is None:
            continue
        for what, old, new in (  # not buffers: a forward, which comes before the first step, may change them
            ("parameters", then.params, now.params),
            ("optimizer state", then.optimizer, now.optimizer),
        ):
            if missing := [name for name in old if name not in new]:
                count = f"{len(missing)} of {plural(len(old), 'tensor')}"
                return f"{count} of {what} not restored on rank {rank} (`{missing[0]}`)"
            if changed := [name for name in old if old[name] != new[name]]:
                count = f"{len(changed)} of {plural(len(old), 'tensor')}"
                return f"{count} of {what} differ from those saved on rank {rank} (`{changed[0]}`)"
    return None


def carried(straight: Measured, traces: Sequence[Trace]) -> list[set[str]]:
    """What holds weights beside those that the optimizers step, and changes them as it trains; by rank.

    What changes only where state is taken or saved is a copy for that.
    """
    found = []
    for own, trace in zip(straight, traces, strict=True):
        copied = {event.when.step for event in trace.of(StateTaken, Saved, AsyncSaved)}
        changed = [
            {name for name, crc in now.beside.items() if before.beside.get(name, crc) != crc}
            for before, now in itertools.pairwise(own)
            if before.step not in copied
        ]
        found.append(set[str]().union(*changed))
    return found


def carried_difference(
    straight: Measured, resumed: Measured, saved: int, names: Sequence[AbstractSet[str]]
) -> str | None:
    """The first of these holders, by rank, that is at a step not what it was in the straight run; None where all are.

    One may be made late, but not never.
    """
    for rank, own in enumerate(names):
        then = {f.step: f.beside for f in straight[rank]}
        after = {f.step + saved: f.beside for f in resumed[rank] if f.step > 0}
        steps = sorted(after.keys() & then.keys())
        for name in sorted(own):
            held = [step for step in steps if name in after[step] and name in then[step]]
            apart = next((step for step in held if after[step][name] != then[step][name]), None)
            if apart is not None or (steps and not held and name in then[steps[-1]]):
                how = "is gone" if apart is None else f"is not in step {apart} what it was"
                return f"`{name}`, weights beside the model that change as it trains, {how} on rank {rank}: save it too"
    return None


def max_loss_difference(straight: Measured, resumed: Measured, saved: int) -> float:
    """The largest absolute difference between the losses of steps that both runs took."""
    worst = 0.0
    for ours, theirs in zip(straight, resumed, strict=True):
        by_step = {f.step: f for f in ours}
        for f in theirs:
            if f.step > 0 and (same := by_step.get(f.step + saved)):
                worst = max([worst, *(abs(a - b) for a, b in zip(same.losses, f.losses, strict=False))])
    return worst


def _quantities(one: StepFigures, two: StepFigures) -> Sequence[tuple[str, str, str]]:
    return (
        ("loss", repr(one.losses), repr(two.losses)),
        ("gradient norm", repr(one.grad_norm_sq**0.5), repr(two.grad_norm_sq**0.5)),
        ("learning rate", repr(one.lrs), repr(two.lrs)),
        ("parameters", *_apart(one.params, two.params)),
        ("optimizer state", *_apart(one.optimizer, two.optimizer)),
        ("buffers", *_apart(one.buffers, two.buffers)),
    )


def _apart(one: dict[str, int], two: dict[str, int]) -> tuple[str, str]:
    """The first entry that differs, as each side has it; two equal strings when none does."""
    for name in sorted({*one, *two}):
        if one.get(name) != two.get(name):
            return _checksum(name, one), _checksum(name, two)
    return "", ""


def _checksum(name: str, digests: dict[str, int]) -> str:
    return f"`{name}` with checksum {digests[name]:08x}" if name in digests else f"no `{name}`"
