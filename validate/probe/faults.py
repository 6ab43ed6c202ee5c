"""Does what `Fault` says: to one save, ends processes, lets the disk be full, or holds what writes; or sends a signal.

A rank and the process that writes for it, where a save has one, each have a `Faults`; they meet in files.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..launch.job import Phase
from ..launch.places import Settings, write_whole
from ..launch.processes import descendants, parent

HOLD_LIMIT = 15.0  # seconds that a save is held at most, for a loop that waits in a way that the probe does not see
POLL = 0.005  # seconds


@dataclass(frozen=True)
class Chosen:
    """The save that a fault is done to: the `number`-th, from 1, that this rank has written by that kind of process."""

    process: bool
    number: int
    step: int  # optimizer steps of the process when it was called


class Faults:
    """The fault of a job as one process does it; `writer` is whether this process only writes for a rank."""

    def __init__(self, settings: Settings, rank: int, *, writer: bool = False) -> None:
        self.fault = settings.probe.fault
        self._places = settings.places
        self._ranks = range(settings.nproc)
        self._rank = rank
        self._writer = writer
        self._calls: Counter[bool] = Counter()
        self._writes = 0
        self._entries = 0  # of the file that is being written
        self._copied = 0
        self._due = False  # the chosen save was called, and its state is still to be taken
        self._watching = False
        self._failing = False

    # --- what the program does, in the rank's own process ---

    def called(self, steps: int, *, process: bool) -> None:
        """The program calls a save."""
        if self.fault is None:
            return
        self._calls[process] += 1
        if self.fault.phase not in ("removal", "step") and steps >= self.fault.after and self.chosen is None:
            self._due = True
            chosen = {"process": process, "number": self._calls[process], "step": steps}
            write_whole(self._places.chosen(self._rank), json.dumps(chosen))
            self.reached("call")

    def state_taken(self) -> bool:
        """Whether the state that DCP just got from the program is that of a save to be held."""
        due, self._due = self._due, False
        return due and self.fault is not None and self.fault.harm == "hold"

    def tensor_copied(self) -> None:
        """An asynchronous save begins to copy a tensor."""
        if self.chosen is not None:
            self._copied += 1
            if self._copied == 2:
                self.reached("staging")

    def stepped(self, steps: int) -> None:
        """The program has done this many optimizer steps."""
        if self.fault is not None and self.fault.harm == "hold" and (chosen := self.chosen) is not None:
            if steps > chosen.step:
                self._pass("copying", steps)
            if steps >= self.fault.until:
                self._pass("writing", steps)

    def send_signal(self, steps: int) -> None:
        """Send this rank its signal once it has done so many steps. Raises what the program's handler raises."""
        if self.fault is not None and self.fault.harm == "signal" and steps == self.fault.after + (self._rank > 0):
            if self._rank == 0:
                write_whole(self._places.struck, json.dumps({"rank": 0, "phase": "step", "step": steps}))
            os.kill(os.getpid(), self.fault.signum)

    def awaited(self, steps: int, *, copying: bool) -> None:
        """The program is about to wait for a save, or for the copying of its state only."""
        if self.fault is not None and self.fault.harm == "hold" and self.chosen is not None:
            self._pass("copying", steps)
            if not copying:
                self._pass("writing", steps)

    def removing(self, steps: int, folder: str | None) -> None:
        """The program is about to remove a folder."""
        if self.fault is None or self.fault.phase != "removal" or steps < self.fault.after or folder is None:
            return
        path = Path(folder)
        if (path / ".metadata").exists():
            if data := sorted(path.glob("*.distcp")):
                data[0].unlink()  # rmtree keeps to no order: the metadata may be the last to go
            self._strike("removal", steps)

    # --- what DCP does, in whichever process writes ---

    @property
    def chosen(self) -> Chosen | None:
        """The save that the fault is done to, once the program has called it."""
        path = self._places.chosen(self._rank)
        return Chosen(**json.loads(path.read_text())) if self.fault is not None and path.exists() else None

    @contextlib.contextmanager
    def writing(self, storage_writer: Any) -> Iterator[None]:
        """DCP plans, writes and finishes a save by this storage writer."""
        self._writes += 1
        chosen = self.chosen
        if chosen is None or chosen.process is not self._writer:
            yield
            return
        if self._writes != chosen.number and not self._failing:
            yield
            return
        assert self.fault is not None
        if self.fault.harm == "hold":
            self.hold("writing")
        self._entries = 0
        write, finish = storage_writer.write_data, storage_writer.finish

        def write_data(*args: Any, **kwargs: Any) -> Any:
            result = write(*args, **kwargs)
            self.reached("writing")  # a rank with one entry or none, or a storage writer with files of its own kind
            return result

        def finish_all(*args: Any, **kwargs: Any) -> Any:
            self.reached("written")
            result = finish(*args, **kwargs)
            self.reached("published")
            return result

        storage_writer.write_data, storage_writer.finish = write_data, finish_all
        self._watching = True
        try:
            yield
        finally:
            self._watching = False
            del storage_writer.write_data, storage_writer.finish

    def entry_begun(self, stream: Any) -> None:
        """DCP is about to write an entry of a file."""
        if self._watching:
            self._entries += 1
            if self._entries == 2:
                stream.flush()  # so that part of the file is there
                self.reached("writing")

    def hold(self, what: str) -> None:
        """Wait until the program has gone on far enough."""
        passed = self._places.passed(self._rank, what)
        until = time.monotonic() + HOLD_LIMIT
        while not passed.exists() and time.monotonic() < until:
            time.sleep(POLL)

    def reached(self, phase: Phase) -> None:
        """The chosen save is in this phase: do there what is to be done. Raises OSError where the disk is full."""
        if self.fault is None or self.fault.phase != phase or self.fault.harm == "hold":
            return
        chosen = self.chosen
        assert chosen is not None
        self._strike(phase, chosen.step)

    def _strike(self, phase: Phase, step: int) -> None:
        assert self.fault is not None
        told = json.dumps({"rank": self._rank, "phase": phase, "step": step})
        first = True
        try:
            descriptor = os.open(self._places.struck, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
            os.write(descriptor, told.encode())
            os.close(descriptor)
        except FileExistsError:
            first = False
        harm = self.fault.harm
        if harm == "full disk":
            self._failing = True
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if first and harm == "kill writer":
            os.kill(os.getpid(), signal.SIGKILL)
        if first:
            self._kill(self._ranks if harm == "kill all" else [self._rank])

    def _kill(self, ranks: Any) -> None:
        """End these ranks and all below them, this process last."""
        victims = set[int]()
        for rank in ranks:
            pid = int(self._places.begun(rank).read_text())
            with contextlib.suppress(OSError):  # it has gone
                victims |= {pid, *descendants(parent(pid))}  # a shepherd has the rank below it, and what that spawned
        for pid in sorted(victims, key=lambda pid: pid == os.getpid()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _pass(self, what: str, steps: int) -> None:
        path = self._places.passed(self._rank, what)
        if not path.exists():
            write_whole(path, str(steps))
