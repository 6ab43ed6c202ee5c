"""Starts a generated script by its launch file, and leaves nothing of that running."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

from pytorch_fsdp2_dcp.templates.launchers import launch_name

from ..commands import fsdp2
from ..runs import alive
from .training import DEADLINE, Training

SCRIPT = "my train.py"  # a name that has to be quoted
MARK = "LAUNCHED_BY_TEST"  # in the environment of all that a test starts


def write_launched(folder: Path, launcher: str, *options: str) -> Path:
    """A script and its launch file, in a folder with a blank in its name; the path of the latter."""
    scripts = folder / "the scripts"
    scripts.mkdir(exist_ok=True)
    process = fsdp2("generate", "--out", SCRIPT, "--launcher", launcher, *options, cwd=scripts)
    assert process.returncode == 0, process.stderr
    return scripts / launch_name(launcher, SCRIPT)


@contextlib.contextmanager
def started(*commands: list[str], cwd: Path, **environment: str) -> Iterator[list[subprocess.Popen[str]]]:
    """The running commands; whatever they have started is killed in the end."""
    mark = uuid.uuid4().hex
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # where torchrun is
    cwd.mkdir(exist_ok=True)
    processes = [
        subprocess.Popen(
            command,
            cwd=cwd,
            env={**os.environ, "PATH": path, "OMP_NUM_THREADS": "1", MARK: mark, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for command in commands
    ]
    try:
        yield processes
    finally:
        while pids := alive(mark):
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):  # it has just ended by itself
                    os.kill(pid, signal.SIGKILL)
        for process in processes:
            process.communicate()


def ends_well(process: subprocess.Popen[str], *, deadline: float = DEADLINE) -> str:
    """The output of a process that exits with 0."""
    out, _ = process.communicate(timeout=deadline)
    assert process.returncode == 0, out
    return out


def rank_of(rank: int, run: Training) -> int:
    """The process of this rank."""
    (pid,) = (
        pid
        for pid in alive(str(run.checkpoints))
        if f"RANK={rank}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        and SCRIPT.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    )
    return pid


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
