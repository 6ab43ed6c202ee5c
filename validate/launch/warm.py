"""Ranks forked from a parent that has imported torch: the run is the same as under torchrun, and seconds shorter."""

from __future__ import annotations

import functools
import json
import os
import select
import subprocess
import sys
import tempfile
import threading
import weakref
from typing import Any

from ..errors import UserError
from .job import Job, Run
from .places import prepare
from .torchrun import BOOT, THREADS, environment
from .watch import Abandoned, watch

IMPORT_LIMIT = 180.0  # seconds for the parent to import torch, on a busy machine


class WarmLauncher:
    """Asks the warm parent, which all launchers of this process share, to fork each job."""

    name = "warm"
    concurrent = True

    def __init__(self) -> None:
        self._abandoned = threading.Event()

    def run(self, job: Job) -> Run:
        if self._abandoned.is_set():
            raise Abandoned
        places = prepare(job)
        parent = _parent()
        pid = parent.start({"settings": str(places.settings), "env": environment(job)})
        return watch(job, places, _Forked(parent, pid), self._abandoned)

    def abandon(self) -> None:
        self._abandoned.set()


class _Parent:
    """The process that runs `server.py`, and the lines exchanged with it; one thread at a time reads what it says."""

    def __init__(self) -> None:
        self._reading = threading.Lock()
        self._ended = set[int]()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed with this object
        self._process = subprocess.Popen(
            [sys.executable, str(BOOT), "serve"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={THREADS: "1", **os.environ},
            start_new_session=True,  # an interrupt from the terminal is for this process to handle
        )
        self._pending = b""
        weakref.finalize(self, _stop, self._process)
        if "ready" not in (self._receive(IMPORT_LIMIT) or {}):
            raise UserError("the warm parent did not start within its time; try --launcher torchrun")

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def start(self, request: dict[str, Any]) -> int:
        """Have a job forked; the pid of its leader."""
        with self._reading:
            assert self._process.stdin is not None
            self._process.stdin.write((json.dumps(request) + "\n").encode())
            self._process.stdin.flush()
            while True:
                message = self._receive(IMPORT_LIMIT)
                assert message is not None
                if "pid" in message:
                    pid: int = message["pid"]
                    self._ended.discard(pid)  # of a leader before it that had the same
                    return pid
                self._ended.add(message["ended"])

    def ended(self, pid: int, wait: float) -> bool:
        """Whether this leader has ended, after waiting at most `wait` seconds for a word of that, or of another."""
        with self._reading:
            if pid not in self._ended and (message := self._receive(wait)) is not None:
                self._ended.add(message["ended"])
            return pid in self._ended

    def _receive(self, wait: float) -> dict[str, Any] | None:
        """The next line from the parent, None when there is none within `wait` seconds."""
        assert self._process.stdout is not None
        while b"\n" not in self._pending:
            if not select.select([self._process.stdout], [], [], wait)[0]:
                return None
            if not (data := os.read(self._process.stdout.fileno(), 65536)):
                raise UserError(f"the warm parent ended: {self._last_words()}; try again, or --launcher torchrun")
            self._pending += data
        line, _, self._pending = self._pending.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        return message

    def _last_words(self) -> str:
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").splitlines()
        return next((line.strip() for line in reversed(lines) if line.strip()), "it wrote nothing")


class _Forked:
    """A leader that is a child of the warm parent."""

    def __init__(self, parent: _Parent, pid: int) -> None:
        self._parent = parent
        self.pid = pid

    def over(self, wait: float) -> bool:
        return self._parent.ended(self.pid, wait)


@functools.cache
def _only_parent() -> list[_Parent]:
    return []


def _parent() -> _Parent:
    held = _only_parent()
    if held and not held[0].alive:
        held.clear()
    if not held:
        held.append(_Parent())
    return held[0]


def _stop(process: subprocess.Popen[bytes]) -> None:
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            stream.close()
    process.wait()
