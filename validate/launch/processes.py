"""Process trees on Linux: who descends from whom, and how to end them all."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from pathlib import Path

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def die_with_parent(by: signal.Signals = signal.SIGKILL) -> None:
    """Have the kernel send this process a signal when the one that forked it is gone."""
    _prctl(PR_SET_PDEATHSIG, by)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent dies, so that none can get out of sight."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def descendants(pid: int) -> list[int]:
    """The living processes below `pid`, zombies left out."""
    children: dict[int, list[int]] = {}
    zombies = set[int]()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue  # ended meanwhile
        children.setdefault(int(parent), []).append(int(entry.name))
        if state in "ZX":
            zombies.add(int(entry.name))
    found, todo = list[int](), [pid]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return [p for p in found if p not in zombies]


def parent(pid: int) -> int:
    """The pid of a living process's parent, or of a zombie's. Raises OSError where there is no such process."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def kill_descendants(pid: int) -> None:
    """Kill every process below `pid`, however fast they fork; `pid` must adopt orphans and be alive."""
    while below := descendants(pid):
        for victim in below:
            with contextlib.suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)
        time.sleep(0.005)
