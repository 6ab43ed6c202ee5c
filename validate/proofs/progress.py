"""Which proofs run the script how, on one line of a terminal."""

from __future__ import annotations

import contextlib
import itertools
import sys
import threading
import time
from collections.abc import Iterator

from ..launch.job import Fault


class _Thread(threading.local):
    proof = ""  # what it runs the script for


class Progress:
    """Shows each run of a script while it lasts, where stderr is a terminal."""

    def __init__(self) -> None:
        self._thread = _Thread()
        self._runs = itertools.count(1)
        self._running: dict[int, str] = {}
        self._started = time.monotonic()

    def runs_for(self, proof: str) -> None:
        """What this thread runs the script for, from now on."""
        self._thread.proof = proof

    @contextlib.contextmanager
    def run(self, fault: Fault | None) -> Iterator[None]:
        """The script is run, with what is done to it there."""
        number = next(self._runs)
        what = "" if fault is None else f" ({fault.harm}, {fault.phase})"
        self._running[number] = f"{self._thread.proof}: run {number}{what}"
        self._show()
        try:
            yield
        finally:
            del self._running[number]
            self._show()

    def _show(self) -> None:
        if sys.stderr.isatty():
            running = [*self._running.values()]
            so_far = f", {time.monotonic() - self._started:.0f} s so far" if running else ""
            print(f"\r{'; '.join(running)}{so_far}\x1b[K", end="", file=sys.stderr, flush=True)
