"""The proof `async`: what is saved is the state at the call, whatever the loop does next.

The script runs again, and what writes the save nearest the middle is held until the loop has gone on beyond the next
save, or waits for this one. What the checkpoint then holds must be what the save was given when it was called. In a
third run the disk is full from that save on: the script must not end as if it had saved.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ..checkpoint.archives import load_object
from ..checkpoint.contents import Contents, Tensor
from ..checkpoint.folders import Folder, open_folder
from ..checkpoint.layouts import Checkpoint, survey
from ..checkpoint.values import bands, numpy
from ..errors import UserError
from ..events import AsyncSaved
from ..launch.job import Fault, Run
from ..launch.places import Places
from ..probe.record import notes
from ..report import plural
from .base import CannotProve, DoesNotApply, Proof, Verdict
from .bench import Bench, Measured
from .ground import Ground, ground
from .resume import first_difference

MEANWHILE = 2  # steps that the loop goes on at least while a save is held, where it does not wait for it
NAMED = 8  # keys that the figures name


@dataclass(frozen=True)
class Changed:
    """A key of the checkpoint that is not as the save was given it on a rank; `since`: the step that left it so."""

    rank: int
    key: str
    how: str
    since: int | None = None


class Asynchronous(Proof):
    """Holds the writing of a save, and compares what was written with the state at the call."""

    name = "async"
    claim = "what is saved is the state at the call, whatever the loop does next"

    def prove(self, bench: Bench) -> Verdict:
        found = ground(bench)
        script = bench.subject.script.name
        saves = [save for save in found.saves if isinstance(save, AsyncSaved) and (save.when.step or 0) > 0]
        if not saves:
            raise DoesNotApply(f"{script} saves by dcp.save only: nothing goes on while it writes")
        held = min(saves, key=lambda save: abs(2 * (save.when.step or 0) - found.steps))
        step = held.when.step or 0
        figures: dict[str, Any] = {"steps": found.steps, "save_at_step": step}
        wrong = self._held(bench, found, held, figures) or self._failing(bench, found, figures)
        if wrong:
            return Verdict(name=self.name, status="fail", reason=wrong, figures=figures)
        if figures["steps_meanwhile"] == 0:
            raise DoesNotApply(f"{script} waits for each save before its next step: nothing goes on while it writes")
        reason = (
            f"the save of step {step} was written {plural(figures['steps_meanwhile'], 'step')} later, and holds "
            f"{plural(figures['tensors'], 'tensor')} and {plural(figures['values'], 'value')} as they were at the call "
            f"on {plural(len(found.whole), 'rank')}; a save that fails ends the script with an error"
        )
        return Verdict(name=self.name, status="pass", reason=reason, figures=figures)

    def _held(self, bench: Bench, found: Ground, held: AsyncSaved, figures: dict[str, Any]) -> str | None:
        """What is wrong with the save whose writing is held; None where nothing is."""
        step = held.when.step or 0
        until = _until(found, held)
        fault = Fault(harm="hold", phase="writing", after=step, until=until)
        ran = bench.run(bench.place(), stop_after=until, fault=fault)
        run = ran.run
        situation = f"while the save of step {step} is written slowly"
        if ran.broken:
            return f"{situation}, {ran.broken}"
        if difference := first_difference(found.whole, ran.measured, offset=0):
            figures["first_difference"] = vars(difference)
            return f"{situation}, the loop computes something else: the first difference is the {difference}"
        figures["steps_meanwhile"] = _meanwhile(run, step)
        target = next((save.target for save in ran.traces[0].of(AsyncSaved) if save.when.step == step), held.target)
        try:
            checkpoint = survey(open_folder(str(run.job.cwd / (target or ""))))
        except UserError as error:
            return f"{situation}, it is not there when it has ended: {error}"
        if not isinstance(checkpoint, Checkpoint) or checkpoint.contents is None or not checkpoint.whole:
            why = checkpoint.problems[0].message if isinstance(checkpoint, Checkpoint) else "it is no checkpoint"
            return f"{situation}, it is not whole when it has ended: {why}"
        given = _snapshots(run)
        known = {key for entries in given for key in entries}
        if not known & {*checkpoint.contents.tensors, *checkpoint.contents.objects}:
            raise CannotProve("the checkpoint has no key of the state that was saved; expected DCP's own names")
        figures["tensors"] = len({key for entries in given for key in entries if "crc" in entries[key]})
        figures["values"] = len(known) - figures["tensors"]
        changed = list(_changed(checkpoint.folder, checkpoint.contents, given, ran.measured, step))
        figures["changed"] = [vars(one) for one in changed[:NAMED]]
        if not changed:
            return None
        keys = len({one.key for one in changed})
        first = changed[0]
        return (
            f"the save of step {step} was written {plural(figures['steps_meanwhile'], 'step')} later, and "
            f"{keys} of {len(known)} entries are not as they were at the call: {first.how} on rank {first.rank} "
            f"(`{first.key}`)"
        )

    def _failing(self, bench: Bench, found: Ground, figures: dict[str, Any]) -> str | None:
        """What is wrong with how the script ends when its saves fail; None where nothing is."""
        ran = bench.full_disk(found.middle)
        run = ran.run
        figures["exit_codes_when_saves_fail"] = [end.code for end in run.ends]
        situation = f"with the disk full from the save of step {found.middle} on"
        if not Places(run.records.parent).struck.exists():
            return None
        if run.hung:
            return f"{situation}, {ran.broken}"
        if finished := [end.rank for end in run.ends if end.code == 0]:
            return f"{situation}, rank {finished[0]} ends with exit code 0 all the same: nobody looked at the future"
        return None


def _until(found: Ground, held: AsyncSaved) -> int:
    """The step until which a save is held: beyond the next save, unless that goes to the same folder."""
    step = held.when.step or 0
    following = next((save for save in found.saves if (save.when.step or 0) > step), None)
    until = step + MEANWHILE
    if following is not None:
        then = following.when.step or 0
        until = min(until, then) if following.target == held.target else max(until, then + 1)
    return min(until, found.steps)


def _meanwhile(run: Run, step: int) -> int:
    """How many steps the loop did on each rank while the save of `step` was held."""
    places = Places(run.records.parent)
    passed = [places.passed(end.rank, "writing") for end in run.ends]
    return min(int(path.read_text()) - step if path.exists() else 0 for path in passed)


def _snapshots(run: Run) -> list[dict[str, Any]]:
    """By rank, what the save was given (`probe/snapshot.py`)."""
    return [next((note["of"] for note in notes(run, end.rank, "snapshot")), {}) for end in run.ends]


def _changed(
    folder: Folder, contents: Contents, given: list[dict[str, Any]], after: Measured, step: int
) -> Iterator[Changed]:
    """What the checkpoint has not as it was given. A value that ranks gave differently is compared with any of them."""
    for key in sorted({key for entries in given for key in entries}):
        ranks = [rank for rank, entries in enumerate(given) if key in entries]
        if key in contents.tensors:
            whole = _elements(folder, contents.tensors[key])
            found = [_tensor_change(whole, given[rank][key], rank, key, after, step) for rank in ranks]
        elif (place := contents.objects.get(key)) is not None:
            saved = repr(load_object(folder, place))
            found = [_value_change(saved, given[rank][key], rank, key) for rank in ranks]
        else:
            found = [Changed(rank, key, "not in the checkpoint") for rank in ranks]
        everywhere = all(given[rank][key].get("offsets") == given[ranks[0]][key].get("offsets") for rank in ranks)
        changes = [change for change in found if change is not None]
        if changes and not (everywhere and len(changes) < len(found)):
            yield from changes


def _elements(folder: Folder, tensor: Tensor) -> Any:
    np = numpy()
    parts = [band.words.reshape(-1) for band in bands(folder, tensor)]
    return np.concatenate(parts).reshape(tensor.shape) if parts else np.empty(tensor.shape, "u1")


def _tensor_change(
    whole: Any, given: dict[str, Any], rank: int, key: str, after: Measured, step: int
) -> Changed | None:
    if "crc" not in given:
        return Changed(rank, key, "a tensor where a value was given")
    block = tuple(slice(low, low + size) for low, size in zip(given["offsets"], given["sizes"], strict=True))
    crc = zlib.crc32(numpy().ascontiguousarray(whole[block]).tobytes())
    if crc == given["crc"]:
        return None
    later = [f for f in after[rank] if f.step > step]
    left = [f.step for f in later if crc in {*f.params.values(), *f.optimizer.values(), *f.buffers.values()}]
    since = min(left, default=None)
    return Changed(rank, key, f"what step {since} left" if since else "other elements", since)


def _value_change(saved: str, given: dict[str, Any], rank: int, key: str) -> Changed | None:
    if "value" not in given:
        return Changed(rank, key, "a value where a tensor was given")
    return None if saved == given["value"] else Changed(rank, key, f"{saved} where {given['value']} was given")
