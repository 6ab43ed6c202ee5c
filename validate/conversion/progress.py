"""How far a conversion is, on one line of a terminal."""

from __future__ import annotations

import sys
import time

from ..checkpoint.show import size

INTERVAL = 0.2  # seconds between two looks


class Progress:
    """Counts bytes; shows them, their rate and the time left where stderr is a terminal."""

    def __init__(self, what: str, total: int) -> None:
        self._what, self._total, self._done = what, total, 0
        self._started = self._shown = time.monotonic()
        self._visible = sys.stderr.isatty()

    def add(self, count: int) -> None:
        self._done += count
        now = time.monotonic()
        if self._visible and now - self._shown >= INTERVAL:
            self._shown = now
            rate = self._done / (now - self._started)
            left = (self._total - self._done) / rate
            line = f"{self._what}: {size(self._done)} of {size(self._total)}, {size(int(rate))}/s, {left:.0f} s left"
            print(f"\r{line}\x1b[K", end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        """Take the line away."""
        if self._visible:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
