"""Runs a script as often as the proofs need, each time in a place where its checkpoints touch nobody else's."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import signal
import threading
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .. import suppressions
from ..errors import UserError
from ..events import AsyncSaved, Exited, GroupInitialised, MeshCreated, Saved
from ..findings import Finding
from ..header import Header
from ..header import digest as digest_of_text
from ..launch.job import Fault, Job, Launcher, Probe, RankEnd, Run
from ..probe.figures import DRAWS, StepFigures, digest, figures
from ..probe.merge import merge
from ..probe.whole import WholeState, whole_state
from ..report import plural
from ..rules import judge
from ..trace import Trace
from .base import CannotProve
from .hang import describe_hang, standing
from .once import once
from .progress import Progress
from .topology import Topology

COPY_LIMIT = 256 * 2**20  # bytes of a working directory that are copied without asking for --checkpoint-arg
WITHOUT_CUDA = (  # what torch raises where it has no CUDA, or there is no GPU
    "Torch not compiled with CUDA enabled",
    "module 'torch._C' has no attribute '_cuda_setDevice'",
    "Found no NVIDIA driver",
    "No CUDA GPUs are available",
    "no GPUs found",
    "doesn't have NCCL built in",
    "No backend type associated with device type cuda",
)
SHORT = 8  # runs take less than this part of the deadline where another one may slow them
ARGPARSE = 2  # the exit code of a script whose arguments are not as it wants them
WITHOUT_PACKAGE = "ImportError: attempted relative import with no known parent package"
RELATIVE = re.compile(r"^\s*from\s+\.", re.MULTILINE)
NOT_COPIED = shutil.ignore_patterns(
    ".git", ".venv", "venv", "__pycache__", "node_modules", ".*_cache", "*.distcp", ".metadata"
)


Measured = tuple[list[StepFigures], ...]  # by rank, by step


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A script and how to drive it.

    `checkpoint_arg` is the flag that sets its checkpoint directory; without it, it runs in a copy of `cwd`.
    `stop_after` ends every run after that many optimizer steps, for a script that would go on for long. `header`: what
    a generated script carries. `to_nproc`, `to_mesh`: to which topology it is taken, where that was asked for.
    `without_dropout`: nothing is left out in any of its runs.
    """

    script: Path
    args: tuple[str, ...]
    nproc: int
    cwd: Path
    checkpoint_arg: str | None
    stop_after: int | None
    timeout: float
    header: Header | None = None
    to_nproc: int | None = None
    to_mesh: str | None = None
    without_dropout: bool = False


@dataclass(frozen=True)
class Place:
    """Where a run keeps its checkpoints: its working directory, and the folder that must hold all that it saves."""

    cwd: Path
    saves_below: Path


class Bench:
    """Runs the subject with one launcher, for as many threads as ask; everything lies below `scratch`.

    `thorough`: a proof that has more to try than there is time for, beside the others, tries it all.
    """

    def __init__(
        self,
        subject: Subject,
        launcher: Launcher,
        scratch: Path,
        *,
        thorough: bool = False,
        progress: Progress | None = None,
    ) -> None:
        self.subject = subject
        self.thorough = thorough
        self.launcher = launcher
        self.progress = progress or Progress()
        self._scratch = scratch
        self._places = itertools.count(1)
        self._runs = itertools.count(1)
        self._full_disks: dict[int, Ran] = {}
        self._filling = threading.Lock()

    def place(self) -> Place:
        """A fresh place without checkpoints."""
        folder = self._scratch / f"place-{next(self._places)}"
        if self.subject.checkpoint_arg is None:
            _copy_tree(self.subject.cwd, folder, self._scratch)
            return Place(folder, folder)
        folder.mkdir()
        return Place(self.subject.cwd, folder / "checkpoints")  # not there yet, as before anybody's first run

    def copy(self, place: Place) -> Place:
        """A place with the checkpoints that are in another one, which stay as they are there."""
        folder = self._scratch / f"place-{next(self._places)}"
        if self.subject.checkpoint_arg is None:
            shutil.copytree(place.cwd, folder, symlinks=True)
            return Place(folder, folder)
        folder.mkdir()
        if place.saves_below.exists():
            shutil.copytree(place.saves_below, folder / "checkpoints", symlinks=True)
        return Place(self.subject.cwd, folder / "checkpoints")

    def run(
        self,
        place: Place,
        *,
        stop_after: int | None = None,
        stop_at: tuple[int, ...] = (),
        whole_after: int | None = None,
        topology: Topology | None = None,
        args: tuple[str, ...] = (),
        fault: Fault | None = None,
    ) -> Ran:
        """Run the subject in `place`, with its own arguments and nothing changed but the checkpoint directory.

        `topology`: on other ranks than its own. `args`: more arguments. `whole_after`: the step after which the probe
        takes the whole state.
        """
        scratch = self._scratch / f"run-{next(self._runs)}"
        scratch.mkdir()
        subject = self.subject
        checkpoints = () if subject.checkpoint_arg is None else (subject.checkpoint_arg, str(place.saves_below))
        topology = topology or Topology(nproc=subject.nproc)
        script = topology.script or subject.script
        if place.cwd != subject.cwd and script.is_relative_to(subject.cwd):
            script = place.cwd / script.relative_to(subject.cwd)  # so that what it saves beside itself is copied too
        log = scratch / "log.jsonl"
        logs = ("--log", str(log)) if self._logs else ()
        job = Job(
            script=script,
            args=(*subject.args, *checkpoints, *topology.args, *args, *logs),
            nproc=topology.nproc,
            cwd=place.cwd,
            scratch=scratch,
            deadline=subject.timeout,
            probe=Probe(
                figures=True,
                stop_after=stop_after or subject.stop_after,
                stop_at=stop_at,
                whole_after=whole_after,
                without_dropout=subject.without_dropout,
                fault=fault,
            ),
        )
        with self.progress.run(fault):
            return Ran(place, self.launcher.run(job), log)

    @once
    def _logs(self) -> bool:
        """Whether the script was generated, still has the flag that sets its log, and was not given one."""
        subject = self.subject
        if subject.header is None or "--log" in subject.args:
            return False
        return '"--log"' in subject.script.read_text("utf-8", errors="replace")

    def left(self, saved: int) -> int | None:
        """After how many steps a run ends that continues after step `saved`, where runs are ended at all."""
        return None if self.subject.stop_after is None else self.subject.stop_after - saved

    @property
    def end(self) -> tuple[int, ...]:
        """By rank, what the parameters are where the straight run was ended; nothing where runs end by themselves."""
        if self.straight.steps != self.subject.stop_after:
            return ()
        return tuple(digest(own[-1].params) for own in self.straight.measured)

    def file(self, name: str) -> Path:
        """The path of a new file in a folder of its own."""
        folder = self._scratch / f"place-{next(self._places)}"
        folder.mkdir()
        return folder / name

    def full_disk(self, after: int) -> Ran:
        """A run from scratch whose disk is full from the first save after that many steps on."""
        with self._filling:
            if after not in self._full_disks:
                fault = Fault(harm="full disk", phase="writing", after=after)
                self._full_disks[after] = self.run(self.place(), fault=fault)
            return self._full_disks[after]

    @property
    def straight(self) -> Straight:
        """The uninterrupted run, which all proofs start from. Raises UserError for one that can show nothing here."""
        self._straight.check()
        return self._straight

    @property
    def side_by_side(self) -> bool:
        """Whether two runs at a time are sure not to meet: in a port, a file, the memory of a GPU, or the deadline.

        What is known of a generated script that nobody has edited, on CPUs, where its runs are short. Raises UserError
        as `straight` does.
        """
        straight, header = self.straight, self.subject.header
        return (
            self.launcher.concurrent
            and header is not None
            and header.digest == digest_of_text(self.subject.script.read_text("utf-8"))
            and straight.completed
            and straight.run.seconds < self.subject.timeout / SHORT
            and all(event.device_type == "cpu" for trace in straight.traces for event in trace.of(MeshCreated))
        )

    @property
    def seen(self) -> Straight | None:
        """The uninterrupted run, whatever came of it; None where nothing was run."""
        return vars(self).get("_straight")

    @once
    def _straight(self) -> Straight:
        ran = self.run(self.place())
        return Straight(ran.place, ran.run, ran.log)

    @once
    def stopped(self) -> Stopped:
        """A run that was killed one step after a checkpoint. Raises CannotProve for a script that gives no occasion.

        What continues it does so in a copy of its place, as more than one does.
        """
        saved = self.straight.checkpoint_between()
        ran = self.run(self.place(), stop_after=saved + 1, whole_after=saved)
        return Stopped(ran.place, ran.run, ran.log, saved)

    @once
    def without_dropout(self) -> Bench:
        """Where the same script runs on other meshes can be compared: this one, or with dropout off if that matters."""
        if not any(f.apart == DRAWS for own in self.straight.measured for f in own):
            return self
        folder = self._scratch / "without-dropout"
        folder.mkdir()
        return Bench(replace(self.subject, without_dropout=True), self.launcher, folder, progress=self.progress)


@dataclass(frozen=True)
class Judged:
    """What the rules find in a run, and what of it comments in the source accept."""

    findings: tuple[Finding, ...]
    accepted: tuple[Finding, ...]


@dataclass(frozen=True)
class Ran:
    """A run in its place, and what the probe saw of it."""

    place: Place
    run: Run
    log: Path

    @property
    def logged(self) -> list[dict[str, Any]]:
        """The rows of the log of a generated script, as far as that writes one."""
        return [json.loads(line) for line in self.log.read_text().splitlines()] if self.log.exists() else []

    @once
    def traces(self) -> tuple[Trace, ...]:
        """What each rank did."""
        return merge(self.run)

    @once
    def judged(self) -> Judged:
        """What the rules find in the traces."""
        found = judge(self.traces)
        left = suppressions.apply(found, suppressions.beside(found, self.run.job.cwd))
        return Judged(tuple(left), tuple(finding for finding in found if finding not in left))

    @once
    def measured(self) -> Measured:
        """What the probe measured, by rank."""
        return tuple(figures(self.run, end.rank) for end in self.run.ends)

    @property
    def steps(self) -> int:
        """How many optimizer steps it took."""
        return self.measured[0][-1].step if self.measured[0] else 0

    @property
    def completed(self) -> bool:
        """Whether every rank came to its end by itself, or was stopped by the probe where that was asked for.

        A process that leaves while torch's threads still talk is now and then aborted after the script's last line;
        then all its work was done.
        """
        stopped = self.run.job.probe.stop_after is not None
        done = [any(exited.code == 0 for exited in trace.of(Exited)) for trace in self.traces]
        return all(
            end.code == 0 or (stopped and end.code == -signal.SIGKILL) or (finished and end.code == -signal.SIGABRT)
            for end, finished in zip(self.run.ends, done, strict=True)
        )

    @property
    def broken(self) -> str | None:
        """How it ended, where it did not end as it was meant to."""
        if self.run.hung:
            return f"the ranks are {describe_hang(self.run, self.traces)}"
        return None if self.completed else how_it_ended(self.run)

    @property
    def hang(self) -> dict[str, Any]:
        """What a verdict's figures say of a hang: where each rank stood, and its stack. Empty where there is none."""
        if not self.run.hung:
            return {}
        where = [one.as_json() for one in standing(self.run, self.traces)]
        return {"hang": where, "stacks": {str(end.rank): end.stack for end in self.run.ends if end.stack}}


@dataclass(frozen=True)
class Stopped(Ran):
    """A run that was killed after step `saved` + 1, when it had saved after step `saved`."""

    saved: int

    def saved_to(self) -> list[Path]:
        """The folders that the checkpoint is in."""
        saves = [save for save in saves_of(self.traces[0]) if save.when.step == self.saved]
        folders = [self.run.job.cwd / save.target for save in saves if save.target is not None]
        return [folder for folder in dict.fromkeys(folders) if folder.is_dir()]

    @once
    def state(self) -> WholeState:
        """What the checkpoint of step `saved` should hold: the state then."""
        state = whole_state(self.run)
        assert state is not None, "it has done the step after"
        return state


class Straight(Ran):
    """The uninterrupted run."""

    def trained(self) -> int:
        """How many optimizer steps it took. Raises CannotProve if it took none or did not run to its end."""
        if not self.completed:
            how = describe_hang(self.run, self.traces) if self.run.hung else how_it_ended(self.run)
            raise unfinished(self.run, how)
        if self.steps == 0:
            script = self.run.job.script.name
            raise CannotProve(f"{script} takes no optimizer step; expected a script that trains")
        return self.steps

    def saved_after(self) -> list[int]:
        """The steps after which it saved. Raises CannotProve if it never did, or never trained."""
        script = self.run.job.script.name
        saved = sorted({save.when.step or 0 for save in self.saves()}) if self.completed else []
        if self.completed and not saved:
            ran = f" in the {plural(self.steps, 'step')} that it ran" if self.steps else ""
            raise CannotProve(f"{script} never saves a checkpoint{ran}; expected a call of dcp.save or dcp.async_save")
        self.trained()
        return saved

    def checkpoint_between(self) -> int:
        """The step of a checkpoint in the middle. Raises CannotProve if it saves only at the end."""
        steps = self.steps
        between = [s for s in self.saved_after() if 0 < s < steps]
        if not between:
            raise CannotProve(
                f"{self.run.job.script.name} saves only after its last step, so that no step can be compared; "
                "expected a checkpoint before the end (a shorter checkpoint interval)"
            )
        return min(between, key=lambda s: abs(2 * s - steps))

    def saves(self) -> list[Saved | AsyncSaved]:
        """The DCP saves of rank 0, in order. Raises UserError for one outside the place of this run."""
        saves = saves_of(self.traces[0])
        for save in saves:
            target = self._resolve(save.target)
            if target is not None and not target.is_relative_to(self.place.saves_below.resolve()):
                raise UserError(
                    f"the script saves to {save.target}, where runs would meet each other's checkpoints; "
                    "name the flag that sets its checkpoint directory with --checkpoint-arg"
                )
        return saves

    def check(self) -> None:
        """Raise UserError for a script that is no distributed program, or needs what is not here."""
        script = self.run.job.script.name
        for end in self.run.ends:
            error = end.error or ""
            if any(words in error for words in WITHOUT_CUDA):
                raise UserError(
                    f"{script} needs CUDA, which is not here: {how_it_ended(self.run)}; expected a script that runs on "
                    "CPUs and gloo where there is no GPU, or a machine with GPUs"
                )
            if error.startswith(WITHOUT_PACKAGE) and RELATIVE.search(self.run.job.script.read_text(errors="replace")):
                raise UserError(f"{script}: {how_it_ended(self.run)}; {_beside_package(self.run.job.script)}")
            if error.startswith("EOFError: EOF when reading a line"):
                raise UserError(
                    f"{script} asks for input: {how_it_ended(self.run)}; expected a script that runs by itself, for "
                    "stdin is empty here as under torchrun"
                )
        if self.completed and not any(any(trace.of(GroupInitialised, MeshCreated)) for trace in self.traces):
            raise UserError(
                f"{script} never initialises a process group; expected a script for torchrun "
                "that calls torch.distributed.init_process_group"
            )

    def below(self, target: str | None) -> Path | None:
        """Where a checkpoint lies in the folder that holds all that the run saves; None where it lies elsewhere."""
        path, folder = self._resolve(target), self.place.saves_below.resolve()
        return path.relative_to(folder) if path is not None and path.is_relative_to(folder) else None

    def _resolve(self, target: str | None) -> Path | None:
        return None if target is None else Path(os.path.realpath(self.run.job.cwd / target))


def saves_of(trace: Trace) -> list[Saved | AsyncSaved]:
    """The saves of a rank by DCP, in order."""
    return list(trace.of(Saved, AsyncSaved))


def how_it_ended(run: Run) -> str:
    """How the first rank ended that did not end well: `rank 1 exits with 1: ValueError: ...`."""
    # The launcher ends the others by SIGTERM once one has failed, so these are told last, whatever they still said.
    for end in sorted(run.ends, key=lambda e: (e.code == -signal.SIGTERM, e.error is None, not e.output, e.rank)):
        if end.code is None or end.code == 0:
            continue
        if end.code < 0:
            return f"rank {end.rank} is ended by signal {-end.code}"
        said = _error(end, run) or next((line for line in reversed(end.output.splitlines()) if line.strip()), "")
        return f"rank {end.rank} exits with {end.code}" + (f": {said.strip().splitlines()[0]}" if said.strip() else "")
    return "every rank exits with 0"


def unfinished(run: Run, how: str) -> CannotProve:
    """Why nothing can be proved of a script that does not come to its end, and what to do."""
    asks = "are required" in how and any(end.code == ARGPARSE for end in run.ends)
    expected = "give the script its options after --" if asks else "expected a script that runs to its end"
    return CannotProve(f"{run.job.script.name}: {how}; {expected}")


def _error(end: RankEnd, run: Run) -> str | None:
    """The exception that ended a rank, and where the script's own code raised it, by the traceback that it printed."""
    if end.error is None:
        return None
    frames = re.findall(r'File "([^"\n]+)", line (\d+)', end.output)
    own = [
        (Path(file).name, line)
        for file, line in frames
        if Path(file).is_relative_to(run.job.script.parent) and "site-packages" not in file
    ]
    return end.error.strip().splitlines()[0] + (f" ({own[-1][0]}:{own[-1][1]})" if own else "")


def _beside_package(script: Path) -> str:
    """What to do with a script that is a module of a package."""
    package = script.parent
    while (package.parent / "__init__.py").exists():
        package = package.parent
    module = ".".join(script.relative_to(package.parent).with_suffix("").parts)
    return (
        "expected a script that runs as a file, and this is a module of a package: name a small file beside the folder "
        f"{package.name} instead, which calls what starts it (from {module} import main; main())"
    )


def _copy_tree(source: Path, destination: Path, scratch: Path) -> None:
    """Copy a working directory, but for `scratch`, which may lie in it."""

    def left_out(folder: str, names: list[str]) -> set[str]:
        return {*NOT_COPIED(folder, names), *(name for name in names if Path(folder, name) == scratch)}

    size = 0
    for folder, folders, files in os.walk(source):
        skipped = left_out(folder, folders + files)
        folders[:] = [f for f in folders if f not in skipped]
        size += sum(Path(folder, f).lstat().st_size for f in files if f not in skipped)
        if size > COPY_LIMIT:
            raise UserError(
                f"{source} is too large to copy for each run (over {COPY_LIMIT // 2**20} MiB); name the flag that sets "
                "the script's checkpoint directory with --checkpoint-arg, or start from a smaller folder"
            )
    shutil.copytree(source, destination, ignore=left_out, symlinks=True)
