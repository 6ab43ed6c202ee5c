"""What to run, and what came of it. Both launchers take a `Job` and return a `Run`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, kw_only=True)
class Probe:
    """What the probe does in each rank beyond recording events.

    * `figures`: record after each optimizer step what a proof compares (`probe/figures.py`).
    * `stop_after`: end the rank with SIGKILL once this many optimizer steps are done and no save is in flight, as a
      crash between
      two steps would.
    """

    figures: bool = False
    stop_after: int | None = None


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
    """One way to start ranks."""

    name: str

    def run(self, job: Job) -> Run:
        """Run the job to its end or its deadline; every process that it started is gone when this returns."""
        ...
