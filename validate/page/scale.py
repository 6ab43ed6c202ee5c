"""From values to places in a drawing, and round values to label an axis with."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Scale:
    """Maps `low` to `start` and `high` to `end`, linearly; values that are all the same lie in the middle."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """Where a value lies, to a tenth of a unit."""
        part = 0.5 if self.high == self.low else (value - self.low) / (self.high - self.low)
        return round(self.start + part * (self.end - self.start), 1)

    def ticks(self, wanted: int, *, whole: bool = False) -> list[tuple[float, str]]:
        """About so many round values, each with where it lies and how it reads; `whole`: no fractions."""
        if self.high == self.low:
            return [(self(self.low), f"{self.low:.4g}")]
        step = _round_step((self.high - self.low) / wanted)
        step = max(1.0, step) if whole else step
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        decimals = max(0, -math.floor(math.log10(step) + 1e-9))
        return [(self(n * step), f"{n * step:.{decimals}f}") for n in range(first, last + 1)]


def scale(values: Iterable[float], start: float, end: float) -> Scale:
    """The scale on which all of these values lie between `start` and `end`."""
    found = list(values)
    return Scale(min(found), max(found), start, end)


def _round_step(step: float) -> float:
    """The least of 1, 2, 5, 10 times a power of ten that is not below."""
    power: float = 10.0 ** math.floor(math.log10(step))
    return next(power * n for n in (1, 2, 5, 10) if power * n >= step * (1 - 1e-9))
