"""The plain command: every rank is a fresh Python that imports torch itself."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from .job import Job, Run
from .leader import fork_leader
from .places import prepare
from .processes import die_with_parent
from .watch import watch

BOOT = Path(__file__).resolve().with_name("boot.py")
THREADS = "OMP_NUM_THREADS"


def environment(job: Job) -> dict[str, str]:
    """What the agent and the ranks get: this process's own, the job's, and one thread as torchrun gives each rank."""
    return {THREADS: "1", **os.environ, **job.env}


class TorchrunLauncher:
    """`python -m torch.distributed.run --standalone`, which finds a free port itself."""

    name = "torchrun"
    concurrent = False  # the kernel ends a leader with the thread that forked it

    def abandon(self) -> None:
        raise AssertionError("no other thread runs anything")

    def run(self, job: Job) -> Run:
        places = prepare(job)
        command = [
            sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr", "localhost",
            "--nproc-per-node", str(job.nproc), "--max-restarts", "0", "--log-dir", str(places.agent_folder),
            str(BOOT), "rank", str(places.settings),
        ]  # fmt: skip
        cwd = job.cwd.resolve()

        def body() -> None:
            subprocess.run(command, env=environment(job), cwd=cwd, check=False, preexec_fn=die_with_parent)

        return watch(job, places, _Child(fork_leader(body, places.agent_log)))


class _Child:
    """A leader that is a child of this process."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._reaped = False

    def over(self, wait: float) -> bool:
        if not self._reaped:
            self._reaped = os.waitpid(self.pid, os.WNOHANG)[0] != 0
        if not self._reaped:
            time.sleep(wait)
        return self._reaped
