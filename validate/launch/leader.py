"""The first process of a job: leads a session of its own and sees to it that nothing of the job outlives it."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from .processes import adopt_orphans, die_with_parent, kill_descendants

AWAITED = {signal.SIGCHLD, signal.SIGTERM}


def fork_leader(body: Callable[[], None], log: Path) -> int:
    """Fork a leader, which runs `body` in a child of its own; returns the leader's pid for the caller to reap.

    The leader ends when `body` has ended, on SIGTERM, or when the process that forked it is gone; before it does, it
    kills and reaps every process below it. Output goes to `log`; stdin is empty.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, AWAITED)  # before the fork, so that the leader misses none
    pid = os.fork()
    if pid:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, AWAITED)
        return pid
    try:
        die_with_parent(signal.SIGTERM)
        os.setsid()
        adopt_orphans()
        redirect(log)
        sys.stdout, sys.stderr = _unbuffered(1), _unbuffered(2)
        child = os.fork()
        if child == 0:
            _run(body)
        while not _reap(child) and signal.sigwait(AWAITED) != signal.SIGTERM:
            pass
        kill_descendants(os.getpid())
        with contextlib.suppress(ChildProcessError):
            while True:
                os.wait()
    except BaseException:  # the process must end here, whatever happened: above is the caller's stack
        traceback.print_exc()
    finally:
        os._exit(0)


def _run(body: Callable[[], None]) -> NoReturn:
    try:
        die_with_parent(signal.SIGKILL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, AWAITED)
        body()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0)


def _reap(child: int) -> bool:
    """Reap what has ended; whether `child` was among it."""
    with contextlib.suppress(ChildProcessError):
        while (pid := os.waitpid(-1, os.WNOHANG)[0]) != 0:
            if pid == child:
                return True
    return False


def redirect(log: Path) -> None:
    """Let stdin be empty, and stdout and stderr go to the end of one file."""
    null = os.open(os.devnull, os.O_RDONLY)
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(null, 0)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.close(null)
    os.close(out)


def own_streams() -> None:
    """Make `sys.stdin` and the like anew of the first three files, unbuffered as under torchrun."""
    sys.stdin = sys.__stdin__ = io.TextIOWrapper(io.FileIO(0, closefd=False), encoding="utf-8")  # type: ignore[misc]
    for number, name in ((1, "stdout"), (2, "stderr")):
        stream = _unbuffered(number, "backslashreplace" if name == "stderr" else "strict")
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _unbuffered(fd: int, errors: str = "strict") -> io.TextIOWrapper:
    return io.TextIOWrapper(io.FileIO(fd, "w", closefd=False), encoding="utf-8", errors=errors, write_through=True)
