"""Which proof runs the script how, on one line of a terminal."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator

from ..launch.job import Fault


class Progress:
    """Shows each run of a script while it lasts, where stderr is a terminal; `proof` is what it is run for."""

    def __init__(self) -> None:
        self.proof = ""
        self._runs = 0
        self._started = time.monotonic()

    @contextlib.contextmanager
    def run(self, fault: Fault | None) -> Iterator[None]:
        """The script is run, with what is done to it there."""
        self._runs += 1
        what = "" if fault is None else f" ({fault.harm}, {fault.phase})"
        so_far = time.monotonic() - self._started
        self._show(f"{self.proof}: run {self._runs}{what}, {so_far:.0f} s so far")
        try:
            yield
        finally:
            self._show("")

    def _show(self, line: str) -> None:
        if sys.stderr.isatty():
            print(f"\r{line}\x1b[K", end="", file=sys.stderr, flush=True)
