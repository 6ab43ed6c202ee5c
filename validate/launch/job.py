"""What to run, and what came of it. Both launchers take a `Job` and return a `Run`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

Phase = Literal["call", "staging", "writing", "written", "published", "removal", "step"]
Harm = Literal["kill all", "kill one", "kill writer", "full disk", "hold", "signal"]


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What the probe does to one save: the first that a rank begins after `after` optimizer steps of its process.

    `phase` is where it is done:

    * `call`: when the program calls `dcp.save` or `dcp.async_save`, before anything else.
    * `staging`: after the first tensor of an asynchronous save was copied.
    * `writing`: between the entries of a rank's file.
    * `written`: when all ranks have written, before the metadata.
    * `published`: when the metadata is there.
    * `removal`: when the program removes a checkpoint by `shutil.rmtree`, and part of its files are gone. It need not
      be part of the save.
    * `step`: when `after` optimizer steps are done, whether it saves or not.

    `harm` is what is done there, by the first rank that comes to it:

    * `kill all`, `kill one`: SIGKILL to every rank or to this one, and to the processes below them.
    * `kill writer`: SIGKILL to the process that writes, where the program saves by one of its own.
    * `full disk`: from there on every write of a checkpoint raises ENOSPC, on all ranks.
    * `hold`: what writes the save, which is asynchronous, waits until the program has done `until` steps or waits for
      the save itself; what copies its state, where that is done in the background, until one step later.
    * `signal`: the signal `signum` to rank 0, and to the others one step later, as far as they come: signals that are
      sent to all at one moment reach them before and after they look for one.
    """

    harm: Harm
    phase: Phase
    after: int
    until: int = 0
    signum: int = 0


@dataclass(frozen=True, kw_only=True)
class Probe:
    """What the probe does in each rank beyond recording events.

    * `figures`: record after each optimizer step what a proof compares (`probe/figures.py`).
    * `stop_after`: end the rank with SIGKILL once this many optimizer steps are done and no save is in flight, as a
      crash between
      two steps would.
    * `stop_at`: by rank, what its parameters are where another run of the program ended (`figures.digest`); once they
      are, the rank is ended likewise. So a run that goes on from a checkpoint comes to the same end, whichever it was.
    * `fault`: what is done to one of its saves.
    * `whole_after`: take fingerprints of the whole state after this many optimizer steps (`probe/whole.py`).
    * `without_dropout`: leave nothing out where torch's dropout would, so that runs on other meshes can be compared.
    """

    figures: bool = False
    stop_after: int | None = None
    stop_at: tuple[int, ...] = ()
    fault: Fault | None = None
    whole_after: int | None = None
    without_dropout: bool = False


@dataclass(frozen=True, kw_only=True)
class Job:
    """One run of `script` with `args` on `nproc` ranks of this machine.

    `scratch` is an empty folder of the caller's: records and logs go below it. `deadline` is in seconds from the
    start of the ranks.
    """

    script: Path
    args: tuple[str, ...]
    nproc: int
    cwd: Path
    scratch: Path
    deadline: float
    env: Mapping[str, str] = field(default_factory=dict)  # added to this process's own
    probe: Probe = Probe()


@dataclass(frozen=True, kw_only=True)
class RankEnd:
    """How a rank ended.

    `code` is its exit status, negative for a signal, None when it was still running at the deadline and had to be
    killed. `error` is the
    exception that ended it (`Type: message`), `stack` the Python stack of each thread at the deadline, `output` what
    it printed
    (stdout and stderr, in order).
    """

    rank: int
    code: int | None
    error: str | None = None
    stack: str | None = None
    output: str = ""


@dataclass(frozen=True, kw_only=True)
class Run:
    """What came of a job. `records` is the folder that holds `rank-<r>.jsonl`, read by `probe.merge`."""

    job: Job
    ends: tuple[RankEnd, ...]
    records: Path
    seconds: float

    @property
    def hung(self) -> bool:
        """Whether any rank was still running at the deadline."""
        return any(end.code is None for end in self.ends)

    @property
    def succeeded(self) -> bool:
        """Whether every rank exited with 0."""
        return all(end.code == 0 for end in self.ends)


class Launcher(Protocol):
    """One way to start ranks.

    `concurrent`: several threads may run jobs at a time.
    """

    name: str
    concurrent: bool

    def run(self, job: Job) -> Run:
        """Run the job to its end or its deadline; every process that it started is gone when this returns."""
        ...

    def abandon(self) -> None:
        """Let each run that is under way in another thread, and each that one would begin, raise Abandoned soon."""
        ...
