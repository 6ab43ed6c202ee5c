"""The first process of a job: leads a session of its own and sees to it that nothing of the job outlives it."""

from __future__ import annotations

import io
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from .processes import adopt_orphans, die_with_parent, kill_descendants


def fork_leader(body: Callable[[], None], log: Path) -> int:
    """Run `body` in a new session, its output in `log` and its stdin empty; returns the pid for the caller to reap."""
    pid = os.fork()
    if pid:
        return pid
    try:
        die_with_parent()
        os.setsid()
        adopt_orphans()
        redirect(log)
        sys.stdout, sys.stderr = _unbuffered(1), _unbuffered(2)
        body()
    except BaseException:  # the process must end here, whatever happened: above is the caller's stack
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(signum, signal.SIG_IGN)
        kill_descendants(os.getpid())
        os._exit(0)


def redirect(log: Path) -> None:
    """Let stdin be empty, and stdout and stderr go to the end of one file."""
    null = os.open(os.devnull, os.O_RDONLY)
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(null, 0)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.close(null)
    os.close(out)


def _unbuffered(fd: int) -> io.TextIOWrapper:
    return io.TextIOWrapper(io.FileIO(fd, "w", closefd=False), encoding="utf-8", write_through=True)
