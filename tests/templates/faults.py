"""Faults of a run's storage, from outside the script: in every process that is started with this environment.

Each process imports `sitecustomize` when it starts, the one that writes checkpoints too; this one replaces `os.fsync`,
which DCP calls once for each file of a checkpoint, when its data is written but no metadata is there yet.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

T = TypeVar("T")

FAULTS = """
import errno, os, time

fsync = os.fsync


def faulty(descriptor):
    name = os.readlink(f"/proc/self/fd/{descriptor}")
    if f"/{os.environ['FAULT_STEP']}/" in name and os.environ["RANK"] == os.environ["FAULT_RANK"]:
        with open(os.environ["FAULT_FILE"], "a") as file:
            file.write(f"{os.getpid()}\\n")
        time.sleep(float(os.environ["FAULT_STALL"]))
        if os.environ["FAULT_ERROR"]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), name)
    return fsync(descriptor)


os.fsync = faulty
"""


class Fault:
    """While it is there, one rank's write of one step's checkpoint stalls for some seconds, then fails if it should."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, folder: Path, step: int, rank: int, *, stall: float, error: bool
    ) -> None:
        self.folder, self.met = folder / "fault", folder / "fault" / "met"
        self.folder.mkdir()
        (self.folder / "sitecustomize.py").write_text(FAULTS)
        values = {
            "STEP": f"step-{step}",
            "RANK": rank,
            "FILE": self.met,
            "STALL": stall,
            "ERROR": "yes" if error else "",
        }
        for name, value in values.items():
            monkeypatch.setenv(f"FAULT_{name}", str(value))
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(self.folder), os.getenv("PYTHONPATH")])))

    def wait(self, deadline: float) -> int:
        """Return once a process is at the fault: its id."""
        return int(wait_for(lambda: self.met.read_text().split() if self.met.exists() else [], deadline)[0])

    def end(self) -> None:
        """Processes started from now on meet it no more."""
        (self.folder / "sitecustomize.py").unlink()


def wait_for(found: Callable[[], T], deadline: float) -> T:
    """What `found()` returns, once that is true."""
    end = time.monotonic() + deadline
    while not (result := found()):
        assert time.monotonic() < end, found
        time.sleep(0.02)
    return result
