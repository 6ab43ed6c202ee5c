"""What the proofs that stop a script or look into its checkpoints need of its uninterrupted run."""

from __future__ import annotations

from dataclasses import dataclass

from ..events import AsyncSaved, Saved
from .bench import Bench, Measured


@dataclass(frozen=True)
class Ground:
    """The straight run's figures, how many steps it has, and its saves in order (those of rank 0)."""

    whole: Measured
    steps: int
    saves: list[Saved | AsyncSaved]

    @property
    def between(self) -> list[int]:
        """The steps after which it saves, but for the last one."""
        return sorted({step for save in self.saves if 0 < (step := save.when.step or 0) < self.steps})

    @property
    def middle(self) -> int:
        """The step of the save nearest the middle, of those with another before them if there are such."""
        return min(self.between[1:] or self.between, key=lambda step: abs(2 * step - self.steps))


def ground(bench: Bench) -> Ground:
    """Raises CannotProve for a script that does not come to its end, takes no step, or saves only after the last."""
    straight = bench.straight
    straight.checkpoint_between()
    return Ground(straight.measured, straight.steps, straight.saves())
