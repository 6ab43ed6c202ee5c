"""FS6: what makes the next step and is in no checkpoint."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TypeVar

from ..events import (
    AsyncSaved,
    Backward,
    BatchesDrawn,
    BatchesPassedOver,
    Entry,
    Event,
    ForwardEntered,
    Kind,
    Loaded,
    LoaderBuilt,
    OptimizerBuilt,
    RandomStateTaken,
    Ref,
    Saved,
    SchedulerBuilt,
    SchedulerStepped,
    Seeded,
    StateApplied,
    StateTaken,
    Stepped,
    TorchSaved,
    TrainingLoop,
)
from ..findings import Finding, Severity
from ..trace import Trace, together
from .base import OF_OTHER_THINGS, READER, Rule, listed
from .data import trains

E = TypeVar("E", bound=Event)

_OF_DATA = re.compile(r"data|load|sampl|batch|consum|seen|token|cursor|position|offset|shard", re.IGNORECASE)
_OF_RANDOM = re.compile(r"rng|rand|seed|generator", re.IGNORECASE)


def entries_of(event: Event) -> tuple[Entry, ...]:
    """What a checkpoint holds, as far as that is known."""
    return getattr(event, "entries", None) or ()


def of_training(trace: Trace, *types: type[E]) -> list[E]:
    """The saves or loads of a training run's state: an optimizer is in it, and nothing that is not known.

    None at all where the program has others that are not known: what is missing in one may be in another.
    """
    every = list(trace.of(Saved, AsyncSaved, Loaded))
    if any(e.entries is None or any(entry.kind is Kind.UNKNOWN for entry in e.entries) for e in every):
        return []
    return [e for e in trace.of(*types) if any(entry.kind is Kind.OPTIMIZER for entry in entries_of(e))]


def _everything(trace: Trace) -> list[Entry]:
    """All that is in a checkpoint or a file of the program's, as far as that is known."""
    return [e for event in trace.of(Saved, AsyncSaved, Loaded, TorchSaved) for e in entries_of(event)]


def _optimizers(event: Event) -> set[Ref]:
    """The optimizers whose state is saved or loaded."""
    return {e.of for e in entries_of(event) if e.kind is Kind.OPTIMIZER and e.of is not None}


class SchedulerNotSaved(Rule):
    """A scheduler reckons the learning rate from a count of its own, which the optimizer's state does not hold."""

    code = "FS605"
    name = "scheduler-not-saved"
    severity = Severity.ERROR
    clause = 8

    def check(self, trace: Trace) -> Iterator[Finding]:
        every_save, every_load = of_training(trace, Saved, AsyncSaved), of_training(trace, Loaded)
        for built in trace.of(SchedulerBuilt):
            loads = [r for r in every_load if _optimizers(r) & self._alike(trace, built)]
            saved = next((s for s in every_save if self._leaves_out(trace, s, built)), None)
            resumed = next((r for r in loads if together(r, built)), None)
            if saved is None or resumed is None or self._restored(trace, built, loads):
                continue
            name = built.scheduler.name
            message = (
                f"the optimizer is saved but its scheduler `{name}` is not: after a resume `{name}` counts from 0, and "
                "the learning rate begins again as it did at first. Save "
                f"{name}.state_dict() beside it, and give it back by load_state_dict."
            )
            yield self.finding(saved, message, (built, "built here"), (resumed, "resumed here"))

    def _leaves_out(self, trace: Trace, saved: Event, built: SchedulerBuilt) -> bool:
        return built.optimizer in _optimizers(saved) and any(
            s.scheduler == built.scheduler for s in trace.of(SchedulerStepped)
        )

    def _alike(self, trace: Trace, built: SchedulerBuilt) -> set[Ref]:
        """The optimizer of a scheduler, and those that are built where it is: what it is in another process."""
        places = {o.at for o in trace.of(OptimizerBuilt) if o.optimizer == built.optimizer}
        alike = {o.optimizer for o in trace.of(OptimizerBuilt) if o.at in places}
        return alike | ({built.optimizer} if built.optimizer is not None else set())

    def _restored(self, trace: Trace, built: SchedulerBuilt, loads: list[Loaded]) -> bool:
        """Whether the scheduler may be brought to where it was in some way."""
        alike = {b.scheduler for b in trace.of(SchedulerBuilt) if b.at == built.at}
        every = [e for event in trace.of(Saved, AsyncSaved, Loaded) for e in entries_of(event)]
        return (
            any(e.of in alike or (e.kind is Kind.SCHEDULER and e.of is None) for e in every)
            or any(alike.intersection(t.of) for t in trace.of(StateTaken))
            or any(alike.intersection(a.to) for a in trace.of(StateApplied))
            or any(trace.escaped(scheduler) for scheduler in alike)
            or all(loaded.order < built.order for loaded in loads)  # it may be built of what was loaded
            or any(self._catches_up(trace, loaded) for loaded in loads)
        )

    def _catches_up(self, trace: Trace, loaded: Loaded) -> bool:
        """Whether schedulers are stepped before training goes on, or were told their count."""
        steps = list(trace.after(loaded, SchedulerStepped, Stepped))
        counts = [s.count for s in steps if isinstance(s, SchedulerStepped)]
        return isinstance(next(iter(steps), None), SchedulerStepped) or (counts[:1] != [] and (counts[0] or 0) > 1)


class RngNotSaved(Rule):
    """What a layer leaves out is drawn from a generator, which starts anew, or from its seed, with the process."""

    code = "FS607"
    name = "rng-not-saved"
    severity = Severity.WARN
    clause = 8

    def check(self, trace: Trace) -> Iterator[Finding]:
        saves, loads = of_training(trace, Saved, AsyncSaved), of_training(trace, Loaded)
        if not saves or not loads or self._looked_after(trace, loads):
            return
        for entered in trace.of(ForwardEntered):
            trained = (s for s in saves if entered.drops and any(trace.between(entered, s, Backward)))
            saved = next(trained, None)
            if saved is None:
                continue
            message = (
                f"`{entered.module.name}` drops out values at random, and no checkpoint holds the state of a random "
                "number generator: a run that is resumed draws what it drew at its first step, or something else, "
                "and is not the run that was stopped. Save torch.get_rng_state(), and that of the accelerator, under "
                "a key of the rank's own, and set it after the load."
            )
            yield self.finding(saved, message, (entered, "drops out values"), (loads[0], "resumed here"))
            return

    def _looked_after(self, trace: Trace, loads: list[Loaded]) -> bool:
        """Whether random numbers may be made to go on in some way."""
        return (
            any(e.kind is Kind.RNG or _OF_RANDOM.search(e.key) for e in _everything(trace))
            or any(trace.of(RandomStateTaken))
            or any(seeded.when.loop or seeded.order > loads[0].order for seeded in trace.of(Seeded))
        )


class DataPositionNotSaved(Rule):
    """A loader begins each pass at its beginning, and so does that of a run which goes on in the middle of one."""

    code = "FS606"
    name = "data-position-not-saved"
    severity = Severity.WARN
    clause = 8

    def check(self, trace: Trace) -> Iterator[Finding]:
        if any(entry.kind is Kind.LOADER or _OF_DATA.search(entry.key) for entry in _everything(trace)):
            return
        if any(saved.entries is None for saved in trace.of(TorchSaved)):
            return
        every_save, every_load = of_training(trace, Saved, AsyncSaved), of_training(trace, Loaded)
        passed_over = {event.loader for event in trace.of(BatchesPassedOver)}
        moved_on = {built.at for built in trace.of(LoaderBuilt) if built.loader in passed_over}
        for built in trace.of(LoaderBuilt):
            if built.rewinds is not True or built.at in moved_on or None in passed_over:
                continue
            drawn = (d for d in trace.after(built, BatchesDrawn) if d.loader == built.loader and trains(trace, d))
            if next(drawn, None) is None or self._looked_after(trace, built):
                continue
            saved = next((s for s in every_save if built.loader in s.underway), None)
            resumed = next((r for r in every_load if saved is not None and together(r, saved)), None)
            if saved is None or resumed is None:
                continue
            message = (
                f"this saves in the middle of a pass through `{built.loader.name}`, and nothing in the checkpoint "
                "tells how far it got: after a resume the pass begins at its first batch, so that samples are seen "
                "twice and others never. Save how many batches were drawn, or the state of a StatefulDataLoader under "
                "a key of the rank's own, and go on from there."
            )
            yield self.finding(saved, message, (built, "drawn from here"), (resumed, "resumed here"))

    def _looked_after(self, trace: Trace, built: LoaderBuilt) -> bool:
        """Whether the program may keep the position of the loader itself."""
        return (
            trace.escaped(built.loader)
            or any(built.loader in taken.of for taken in trace.of(StateTaken))
            or any(built.loader in applied.to for applied in trace.of(StateApplied))
        )


class StepNotSaved(Rule):
    """A run that does not know how far training was does all of it again, from a model that has been trained."""

    code = "FS608"
    name = "step-not-saved"
    severity = Severity.ERROR
    clause = 8
    seen_by = frozenset({READER})

    def check(self, trace: Trace) -> Iterator[Finding]:
        every_save, every_load = of_training(trace, Saved, AsyncSaved), of_training(trace, Loaded)
        for loop in trace.of(TrainingLoop):
            if loop.start is None:
                continue
            saves = [s for s in every_save if loop.since <= s.order < loop.order]
            loads = [r for r in every_load if r.order < loop.since and together(r, loop)]
            pairs = ((s, r) for s in saves if together(s, loop) for r in loads if _optimizers(s) & _optimizers(r))
            found = next((pair for pair in pairs if all(self._tells_nothing(e, loop.anew) for e in pair)), None)
            if found is None:
                continue
            saved, resumed = found
            keys = listed(dict.fromkeys(e.key for e in entries_of(saved)))
            message = (
                f"nothing in this checkpoint tells how far training was ({keys} only), and "
                f"after a resume the loop counts from {loop.start} as before: what was done is done again, under the "
                'same numbers. Save the step beside them ("step": step) and count on from the one that was loaded.'
            )
            yield self.finding(saved, message, (resumed, "resumed here"), (loop, f"counts from {loop.start} here"))

    def _tells_nothing(self, event: Event, anew: bool) -> bool:
        """`anew`: the loop takes nothing of what it counts from there, so that numbers of other things tell nothing."""
        drawn = {e.key for e in entries_of(event) if e.kind is Kind.RNG}
        return all(
            e.kind in (Kind.MODEL, Kind.OPTIMIZER, Kind.SCHEDULER)
            or (anew and (e.key in drawn or (e.kind is Kind.VALUE and OF_OTHER_THINGS.search(e.key) is not None)))
            for e in entries_of(event)
        )
