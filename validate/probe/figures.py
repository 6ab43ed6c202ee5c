"""What a proof compares: figures of each optimizer step, by rank. The probe takes them in `measure.py`."""

from __future__ import annotations

import dataclasses
import zlib
from dataclasses import dataclass
from typing import Any

from ..launch.job import Run
from .record import notes

DRAWS = "its forward draws random numbers, which each rank does by itself"
NORMALISES = "it normalises over the part of the batch that a rank has (BatchNorm)"


@dataclass(frozen=True)
class StepFigures:
    """One rank after one optimizer step; digests are CRC-32 of the bytes of the rank's own part of a tensor.

    * `step`: optimizer steps done in this process. Step 0 is the state before the first one: what a resume restored.
    * `losses`: the value of each root of a backward pass since the step before.
    * `grad_norm_sq`: the sum of squares of the rank's own gradients that the step consumed, in float64; 0.0 when there
      were none.
    * `lrs`: the learning rate of each parameter group with which the step was taken.
    * `params`, `optimizer`: digests by FQN, and by FQN and key (`weight.exp_avg`).
    * `buffers`: digests by FQN of the persistent buffers beside these parameters.
    * `rng`: digest of the state of torch's CPU generator.
    * `grad_share`: the rank's share of the square of the whole model's gradient norm, before clipping: what several
      ranks hold counts once among them. Shares of all ranks add up to it. None where it cannot be told.
    * `samples`: digests of the samples that the model was given since the step before, in order of size.
    * `apart`: what makes the loss depend on how a batch is divided among ranks, `DRAWS` or `NORMALISES`; None where
      nothing was seen.
    * `beside`: of weights that are kept beside those that the optimizers step, as an average of them: a digest by the
      name of what holds them.
    * `precision`: the least precise dtype of the model's parameters, or of autocast.
    """

    step: int
    losses: list[float]
    grad_norm_sq: float
    lrs: list[float]
    params: dict[str, int]
    optimizer: dict[str, int]
    buffers: dict[str, int]
    rng: int
    grad_share: float | None = None
    samples: list[int] = dataclasses.field(default_factory=list)
    apart: str | None = None
    precision: str = "float32"
    beside: dict[str, int] = dataclasses.field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """The figures as plain JSON values."""
        return dataclasses.asdict(self)


def digest(params: dict[str, int]) -> int:
    """One digest of a rank's parameters."""
    return zlib.crc32(repr(sorted(params.items())).encode())


def figures(run: Run, rank: int) -> list[StepFigures]:
    """The figures of one rank in the order of its steps, step 0 first; empty when it never stepped."""
    return [StepFigures(**note["figures"]) for note in notes(run, rank, "figures")]
