"""What the proofs that stop a script or look into its checkpoints need of its uninterrupted run."""

from __future__ import annotations

from dataclasses import dataclass

from ..events import AsyncSaved, Saved
from ..report import plural
from .base import CannotProve
from .bench import Bench, describe_hang, how_it_ended
from .resume import Measured, measured


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


def ground(bench: Bench) -> Ground:
    """Raises CannotProve for a script that does not come to its end, takes no step, or saves only after the last."""
    straight = bench.straight
    script = straight.run.job.script.name
    if not straight.completed:
        how = describe_hang(straight.run, straight.traces) if straight.run.hung else how_it_ended(straight.run)
        raise CannotProve(f"{script}: {how}; expected a script that runs to its end")
    whole = measured(straight.run)
    found = Ground(whole, whole[0][-1].step if whole[0] else 0, straight.saves())
    if not found.saves:
        ran = f" in the {plural(found.steps, 'step')} that it ran" if found.steps else ""
        raise CannotProve(f"{script} never saves a checkpoint{ran}; expected a call of dcp.save or dcp.async_save")
    if found.steps == 0:
        raise CannotProve(f"{script} takes no optimizer step; expected a script that trains")
    if not found.between:
        raise CannotProve(
            f"{script} saves only after its last step; expected a checkpoint before the end (a shorter interval)"
        )
    return found
