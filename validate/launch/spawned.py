"""What a rank starts afresh by `multiprocessing`, forked from its shepherd: torch is imported there already.

The process that writes checkpoints for `async_with_pinned_mem` is one, and its import of torch is most of a short run.
A fork becomes what the new interpreter would have been: the same command, environment, folder and open files.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Callable
from multiprocessing import popen_spawn_posix, util
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, NoReturn

from .leader import own_streams

SPAWNS = "--multiprocessing-fork"  # how the command of such a process ends
MESSAGE = b"."  # files are sent with a message, which may not be empty
FILES_LIMIT = 200  # files that a child is given; the kernel takes 253 with one message
UNKNOWN = 255  # the exit status of a process that nobody could see the end of, as multiprocessing has it


class Spawner:
    """A rank's end: asks the shepherd for each process, and learns from it how that ended."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._asking = threading.Lock()
        self._children: dict[int, _Child] = {}
        self._afresh: Callable[..., int] = vars(util)["spawnv_passfds"]

    def install(self) -> None:
        """Have `multiprocessing` start its processes here."""
        polled = popen_spawn_posix.Popen.poll
        children = self._children

        def poll(self: Any, flag: int = os.WNOHANG) -> int | None:
            if self.returncode is None and (child := children.get(self.pid)) is not None:
                self.returncode = child.status(waits=flag != os.WNOHANG)
            return polled(self, flag) if self.pid not in children else self.returncode

        setattr(util, "spawnv_passfds", self._start)  # noqa: B010 - the stubs do not know it
        setattr(popen_spawn_posix.Popen, "poll", poll)  # noqa: B010 - the same

    def _start(self, path: bytes, command: list[Any], files: list[int]) -> int:
        """As `spawnv_passfds`: run a command with these files open, under their numbers; its pid."""
        words = [os.fsdecode(part) for part in command]
        numbers = sorted({0, 1, 2, *files})
        if words[-1] != SPAWNS or "-c" not in words or len(numbers) > FILES_LIMIT:
            return self._afresh(path, command, files)
        code = words[words.index("-c") + 1]
        asked = {"code": code, "env": dict(os.environ), "cwd": str(Path.cwd()), "numbers": numbers}
        told, tells = os.pipe()
        with tempfile.TemporaryFile() as request:
            request.write(json.dumps(asked).encode())
            request.flush()
            with self._asking:
                socket.send_fds(self._connection, [MESSAGE], [request.fileno(), tells, *numbers])
                pid = int(self._connection.recv(64))
        os.close(tells)
        self._children[pid] = _Child(told)
        return pid


class _Child:
    """A process that the shepherd has forked; `told` is the pipe that its exit status comes through."""

    def __init__(self, told: int) -> None:
        self._told = told
        self._status: int | None = None
        self._reading = threading.Lock()

    def status(self, *, waits: bool) -> int | None:
        if self._status is None and wait([self._told], None if waits else 0):
            with self._reading:
                if self._status is None:
                    self._status = int(os.read(self._told, 64) or UNKNOWN)
        return self._status


class Nursery:
    """The shepherd's end: forks what its rank asks for, and sees each child to its end.

    `refresh` makes a fork like a new interpreter, `end` ends it with an exit status.
    """

    def __init__(self, connection: socket.socket, refresh: Callable[[], None], end: Callable[[int], NoReturn]) -> None:
        self._connection = connection
        self._refresh, self._end = refresh, end
        self._tells: dict[int, int] = {}  # by pid, the pipe that its exit status goes into

    def tend(self, rank: int) -> int:
        """Serve until the rank has ended; returns its wait status."""
        woken, wakes = os.pipe()
        os.set_blocking(wakes, False)
        signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        watched: list[Any] = [woken, self._connection]
        while True:
            for pid in (rank, *self._tells):
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended == rank:
                    return status
                if ended:
                    self._tell(pid, os.waitstatus_to_exitcode(status))
            ready = wait(watched)
            if woken in ready:
                os.read(woken, 512)
            if self._connection in ready and not self._fork():
                watched.remove(self._connection)

    def _tell(self, pid: int, status: int) -> None:
        tells = self._tells.pop(pid)
        with contextlib.suppress(BrokenPipeError):  # the rank has gone
            os.write(tells, str(status).encode())
        os.close(tells)

    def _fork(self) -> bool:
        """Fork what the rank asks for. Returns whether it can ask for more."""
        message, files, _, _ = socket.recv_fds(self._connection, len(MESSAGE), FILES_LIMIT + 2)
        if not message:
            return False  # the rank is ending
        request, tells, *given = files
        pid = os.fork()
        if pid == 0:
            self._become(request, given)
        self._tells[pid] = tells
        for file in (request, *given):
            os.close(file)
        self._connection.send(str(pid).encode())
        return True

    def _become(self, request: int, given: list[int]) -> NoReturn:
        """Be what a new interpreter would have become of the command."""
        status = 0
        try:
            signal.set_wakeup_fd(-1)
            self._refresh()
            with open(request, "rb") as file:
                file.seek(0)
                asked = json.load(file)
            _renumber(given, asked["numbers"])
            own_streams()
            os.environ.clear()
            os.environ.update(asked["env"])
            os.chdir(asked["cwd"])
            sys.argv = ["-c", SPAWNS]
            exec(asked["code"], {"__name__": "__main__"})  # noqa: S102 - multiprocessing's own line
        except SystemExit as leaving:
            status = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
        except BaseException:
            sys.excepthook(*sys.exc_info())
            status = 1
        self._end(status & 0xFF)


def _renumber(files: list[int], numbers: list[int]) -> None:
    """Give open files these numbers and close all others, as a new program has them."""
    beyond = max(*files, *numbers) + 1
    high = range(beyond, beyond + len(files))
    for file, above in zip(files, high, strict=True):
        os.dup2(file, above)
    for file in map(int, os.listdir("/proc/self/fd")):  # noqa: PTH208
        if file not in high:
            with contextlib.suppress(OSError):  # it was the listing's own
                os.close(file)
    for above, number in zip(high, numbers, strict=True):
        os.dup2(above, number)
        os.close(above)
