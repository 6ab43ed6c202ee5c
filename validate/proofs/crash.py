"""The proof `crash`: SIGKILL at every phase of a save loses at most the steps since the last whole checkpoint.

A script that handles SIGTERM, or another signal by which schedulers tell that the end is near, is sent that too: if it
then ends with 0, as if all were well, nothing must be lost.

One place, one command line, started again and again: each run but the last is ended in another phase of a save. The
next must begin with the state of the last whole checkpoint, computes what the straight run computes from there, and so
comes to the save in which it is ended itself. The last one comes to its end, with its newest checkpoint whole. Between
two runs a damaged checkpoint may be put where the next save would go.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..events import AsyncSaved, Awaited, DirectoryRemoved, Saved, SignalHandled
from ..launch.job import Fault, Harm, Phase
from ..launch.places import Places
from ..report import plural
from .base import CannotProve, Proof, Verdict
from .bench import Bench, Measured, Place, Ran, how_it_ended, saves_of
from .damage import Damage, newest, plant, problem
from .ground import Ground, ground
from .resume import first_difference, restored_difference

WHOM: dict[Harm, str] = {"kill all": "all ranks", "kill one": "one rank", "kill writer": "the process that writes"}
WHERE: dict[Phase, str] = {
    "call": "before staging",
    "staging": "during staging",
    "writing": "while a rank writes",
    "written": "after all wrote and before the metadata",
    "published": "after the metadata",
    "removal": "while an old checkpoint is removed",
}
ASKS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
"""Signals that ask a script to end; of those that it handles, the first is sent."""
FAILED = ("RuntimeError", "Dist")  # how the errors of collectives begin that the ranks do not all take part in


@dataclass(frozen=True)
class Cut:
    """One way to end a run, and the damage that is done to what it left; `always` also where others prove as well."""

    harm: Harm
    phase: Phase
    damage: Damage | None = None
    always: bool = False

    def __str__(self) -> str:
        if self.harm == "full disk":
            return "the disk full while a rank writes"
        if self.harm == "signal":
            return "a signal that asks it to end, between two saves"
        return f"{WHOM[self.harm]} killed {WHERE[self.phase]}"


CUTS = (
    Cut("full disk", "writing", always=True),
    Cut("kill all", "call", "a truncated checkpoint"),
    Cut("kill one", "call", "a checkpoint that lacks a file"),
    Cut("kill all", "staging"),
    Cut("kill one", "writing", always=True),
    Cut("kill all", "writing"),
    Cut("kill writer", "writing"),
    Cut("kill one", "written"),
    Cut("kill all", "written", "an empty folder", always=True),
    Cut("signal", "step", always=True),
    Cut("kill all", "published", always=True),
    Cut("kill all", "removal", always=True),
)


@dataclass
class Chain:
    """Runs in one place, one after the other, and with what the next of them must begin.

    * `whole`: the step of the last checkpoint that is whole, 0 where none is.
    * `enough`: the step that will do, and why. It is less than `whole` where a run had no time to make known what it
      saved.
    * `cuts`: what was seen of each cut, for the figures; the last one is still to be completed by the next run.
    """

    place: Place
    whole: int = 0
    enough: int = 0
    why: str = ""
    situation: str = "run from scratch"
    cuts: list[dict[str, Any]] = field(default_factory=list)


class Broken(Exception):
    """A run did what it must not; the message says in which situation and what, `figures` more of a hang."""

    def __init__(self, message: str, figures: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.figures = dict(figures or {})


class Crash(Proof):
    """Ends the script in each phase of a save and starts it again."""

    name = "crash"
    claim = "SIGKILL at every phase of a save loses at most the steps since the last whole checkpoint"
    chained = True

    def prove(self, bench: Bench) -> Verdict:
        examined = Examination(bench, ground(bench))
        try:
            for cut in CUTS:
                if bench.thorough or cut.always:
                    examined.cut(cut)
            examined.end()
        except Broken as broken:
            figures = examined.figures() | broken.figures
            return Verdict(name=self.name, status="fail", reason=str(broken), figures=figures)
        if not examined.cuts:
            raise CannotProve("no phase of a save was seen; expected saves by a storage writer of torch.distributed")
        figures = examined.figures()
        left_out = f" (not seen: {', '.join(examined.not_seen)})" if examined.not_seen else ""
        reason = (
            f"ended in {plural(len(examined.cuts), 'way')} and started again, it lost at most "
            f"{plural(figures['most_steps_lost'], 'step')}, none that a whole checkpoint held, and what follows is "
            f"equal bit for bit on {plural(len(examined.ground.whole), 'rank')}{left_out}"
        )
        return Verdict(name=self.name, status="pass", reason=reason, figures=figures)


class Examination:
    """The chain of runs of one script, and what it has come to."""

    def __init__(self, bench: Bench, found: Ground) -> None:
        self.bench = bench
        self.ground = found
        self.cuts: list[dict[str, Any]] = []
        self.not_seen: list[str] = []
        self._runs = 0
        self._full_disk = bench.full_disk(found.middle)
        self._chain = Chain(self._full_disk.place)
        self._asynchronous = [save for save in found.saves if isinstance(save, AsyncSaved)]
        self._handled = {event.signum for trace in bench.straight.traces for event in trace.of(SignalHandled)}
        removed = [event.target for trace in bench.straight.traces for event in trace.of(DirectoryRemoved)]
        self._removes = any(bench.straight.below(target) for target in removed)

    def figures(self) -> dict[str, Any]:
        """What was seen, for the verdict."""
        lost = [cut["steps_lost"] for cut in self.cuts if "steps_lost" in cut]
        return {
            "steps": self.ground.steps,
            "runs": self._runs,
            "most_steps_lost": max(lost, default=0),
            "cuts": self.cuts,
            "not_seen": self.not_seen,
        }

    def cut(self, cut: Cut) -> None:
        """Run the script until it is ended by `cut`. Raises Broken when it did not go on as it must until then."""
        if cut.phase == "staging" and not self._asynchronous:
            return
        if cut.harm == "kill writer" and not any(save.process for save in self._asynchronous):
            return
        if cut.phase == "removal" and not self._removes:
            self.not_seen.append(str(cut))
            return
        signum = next((signum for signum in ASKS if signum in self._handled), None)
        if cut.harm == "signal" and signum is None:
            return
        chain = self._chain
        after = self.ground.middle if not chain.cuts and cut.phase not in ("removal", "step") else 1
        ran, began = self._go_on(Fault(harm=cut.harm, phase=cut.phase, after=after, signum=signum or 0))
        places = Places(ran.run.records.parent)
        reached = began + max((figures[-1].step for figures in ran.measured if figures), default=0)
        if not places.struck.exists() or (cut.harm == "signal" and reached >= self.ground.steps):
            self._at_its_end(ran, began)
            self._chain = Chain(self.bench.place())
            if chain.cuts:  # too few steps were left
                self.cut(cut)
            else:
                self.not_seen.append(str(cut))
            return
        struck = json.loads(places.struck.read_text())
        if cut.harm in ("full disk", "kill writer"):
            self._told(cut, ran, began + struck["step"])
        if cut.harm == "signal":
            self._asked(ran, began, reached)
        else:
            known = self._known(ran, began, None if cut.phase == "removal" else began + struck["step"])
            chain.enough = max(chain.enough, began, *known)
            chain.whole = max(chain.enough, began + struck["step"] if cut.phase == "published" else 0)
            chain.why = f"the checkpoint of step {chain.enough} was whole"
        seen: dict[str, Any] = {"cut": str(cut), "harm": cut.harm, "phase": cut.phase, "ended_after_step": reached}
        chain.situation = f"with {cut}" if cut.harm == "full disk" else str(cut)
        chain.situation += f" after step {reached} of {self.ground.steps}"
        if cut.damage and self._plant(cut.damage):
            seen["damage"] = cut.damage
            chain.situation += f", and {cut.damage} where the next save goes"
        elif cut.damage:
            self.not_seen.append(f"{cut.damage} where the next save goes")
        chain.situation += ", it is started again"
        seen |= {"whole_checkpoint_at_step": chain.whole, "allowed": reached - chain.enough}
        chain.cuts.append(seen)
        self.cuts.append(seen)

    def end(self) -> None:
        """Let the last run come to its end. Raises Broken when it does not, or its newest checkpoint is not whole."""
        if self._chain.cuts:
            self._at_its_end(*self._go_on(None))

    def _go_on(self, fault: Fault | None) -> tuple[Ran, int]:
        """Start the script in the chain's place; its run, and the step from which it began."""
        chain, steps = self._chain, self.ground.steps
        if fault is not None and fault.harm == "full disk":
            ran = self._full_disk
        else:
            # It may go on from a later checkpoint than it must, and then has fewer steps left.
            ran = self.bench.run(
                chain.place, stop_after=self.bench.left(chain.enough), stop_at=self.bench.end, fault=fault
            )
        self._runs += 1
        situation = chain.situation
        if fault is not None and fault.harm == "signal" and Places(ran.run.records.parent).struck.exists():
            situation += f", and is sent {signal.Signals(fault.signum).name} after its first step"
            first = ran.run.ends[0]  # to which the signal came first
            failed = (first.error or "").startswith(FAILED) or first.code == -signal.SIGABRT  # from C++, by gloo
            if ran.broken and (failed or first.code == 0):
                raise Broken(f"{situation}: {ran.broken}", ran.hang)
        if ran.run.hung:
            raise Broken(f"{situation}: {ran.broken}", ran.hang)
        figures = ran.measured
        if not all(figures):
            if chain.whole >= steps and ran.completed:
                self._resumed(steps)  # nothing is left to do
                return ran, steps
            raise Broken(f"{chain.situation}: {how_it_ended(ran.run)}, before it has taken a step")
        found = self._began(figures)
        if found is None:
            raise Broken(f"{chain.situation}: it begins with parameters that the straight run had after no step")
        self._resumed(found)
        if found < chain.enough:
            where = f"from step {found}" if found else "from scratch"
            raise Broken(f"{chain.situation}: it begins {where}, and {chain.why}")
        if lost := restored_difference(self.ground.whole, figures, found):
            raise Broken(f"{chain.situation}: {lost}")
        if difference := first_difference(self.ground.whole, figures, offset=found):
            if not chain.cuts:
                raise Broken(f"two runs from scratch differ, so nothing that follows can be exact: {difference}")
            raise Broken(f"{chain.situation}: the first difference is the {difference}")
        return ran, found

    def _began(self, figures: Measured) -> int | None:
        """The step of the straight run that left the parameters with which every rank began."""
        alike = [
            step
            for step in range(self.ground.steps + 1)
            if all(
                now[0].params == then[step].params
                for now, then in zip(figures, self.ground.whole, strict=True)
                if step < len(then)
            )
        ]
        return min(alike, key=lambda step: abs(step - self._chain.whole), default=None)

    def _resumed(self, began: int) -> None:
        if self._chain.cuts:
            last = self._chain.cuts[-1]
            last |= {"resumed_from_step": began, "steps_lost": last["ended_after_step"] - began}

    def _told(self, cut: Cut, ran: Ran, step: int) -> None:
        """A save has failed without anybody being killed: the script must have told of it by how it ended."""
        if finished := [end.rank for end in ran.run.ends if end.code == 0]:
            newest_one = newest(self._chain.place.saves_below)
            if cut.harm == "kill writer" and ran.completed and newest_one and problem(newest_one) is None:
                return  # it has tried again
            raise Broken(
                f"with {cut}, in the save of step {step}, rank {finished[0]} ends with exit code 0 all the same"
            )

    def _asked(self, ran: Ran, began: int, reached: int) -> None:
        """The script was sent a signal, and has ended: with 0 only if what it did until then is saved."""
        chain = self._chain
        if ran.completed:
            chain.whole = chain.enough = reached
            chain.why = f"all ranks had ended with 0 after step {reached}, as if it were saved"
        else:  # it says that it was cut off
            chain.enough = chain.whole = max(chain.enough, began, *self._known(ran, began, None))
            chain.why = f"the checkpoint of step {chain.enough} was whole"

    def _known(self, ran: Ran, began: int, struck: int | None) -> list[int]:
        """The steps whose save had ended, as the program could know, when the save of step `struck` was cut."""
        awaited = {event.future for event in ran.traces[0].of(Awaited)}
        known = []
        for save in saves_of(ran.traces[0]):
            step = began + (save.when.step or 0)
            if struck is not None and step >= struck:
                continue
            if isinstance(save, Saved):
                done = save.when.finished
            else:
                done = save.future in awaited or (
                    save.target is not None and problem(ran.run.job.cwd / save.target) is None
                )
            if done:
                known.append(step)
        return known

    def _plant(self, damage: Damage) -> bool:
        """Damage what the last run left, in the place of the next save."""
        straight, chain = self.bench.straight, self._chain
        folders = {save.when.step or 0: straight.below(save.target) for save in self.ground.saves}
        following = min((step for step in folders if step > chain.whole), default=None)
        at, whole = folders.get(following or -1), folders.get(chain.whole)
        if at is None or at == whole:
            return False
        below = chain.place.saves_below
        return plant(damage, below / at, below / whole if whole else None)

    def _at_its_end(self, ran: Ran, began: int) -> None:
        situation, taken = self._chain.situation, ran.steps
        if not ran.completed:
            raise Broken(f"{situation}: {how_it_ended(ran.run)}")
        if began + taken != self.ground.steps and self.bench.subject.stop_after is None:
            raise Broken(
                f"{situation}: it took {plural(taken, 'step')} where {self.ground.steps - began} were left after the "
                f"checkpoint of step {began}"
            )
        last = newest(self._chain.place.saves_below)
        if saves_of(ran.traces[0]) and last is not None and (why := problem(last)) is not None:
            raise Broken(f"{situation}: at its end, its newest checkpoint {last.name} is not whole: {why}")
