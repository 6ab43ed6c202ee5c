"""What all ranks of a run computed together, step by step, which another number of ranks should compute too.

Two runs on other meshes add the same numbers up in another order, so they differ by rounding, and each step starts from
what the steps before have made of it. Over the few steps of a proof, relative differences of losses were at most 2e-7
in fp32 and 1e-5 in bf16, and of gradient norms 2e-7 and 2e-4 (generated scripts and a trainer of two layers, on meshes
of one to four ranks). The tolerances leave room for larger models and longer runs; a mistake is larger: to weigh two
ranks' gradients otherwise changes a norm by parts of one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from .bench import Measured

TOLERANCE = {  # relative, of losses and of gradient norms
    "float64": (1e-4, 1e-3),
    "float32": (1e-4, 1e-3),
    "float16": (2e-3, 1e-2),
    "bfloat16": (1e-2, 5e-2),
}


@dataclass(frozen=True, kw_only=True)
class Total:
    """One optimizer step of all ranks.

    * `mean`, `sum`: over the ranks, of the sum of what each called backward from since the step before. Gradients are
      averaged over ranks unless the program has it otherwise; then losses add up to the same.
    * `grad_norm`: of the whole model, before clipping; None where it cannot be told.
    * `samples`: digests of all samples; `apart`, `precision`: as in `StepFigures`.
    """

    step: int
    mean: float
    sum: float
    grad_norm: float | None
    lrs: tuple[float, ...]
    samples: frozenset[int]
    apart: str | None
    precision: str


@dataclass(frozen=True)
class Apart:
    """The first step at which two runs differ by more than rounding."""

    step: int
    quantity: str
    one: float
    other: float

    def __str__(self) -> str:
        return f"{self.quantity} of step {self.step}: {self.one:.7g} and {self.other:.7g}"


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """How two runs compare over `steps` steps: the largest relative differences, and where they come apart.

    `excuse`: why that need not be a mistake. `other_samples`: it is that the ranks together are given other samples.
    """

    steps: int
    loss: float
    grad_norm: float | None
    tolerance: tuple[float, float]
    apart: Apart | None = None
    excuse: str | None = None
    other_samples: bool = False


def totals(measured: Measured) -> dict[int, Total]:
    """The steps that all ranks have done, by number."""
    by_step = [{f.step: f for f in own if f.step > 0} for own in measured]
    found = {}
    for step in sorted(set(by_step[0]).intersection(*by_step[1:])):
        ranks = [own[step] for own in by_step]
        losses = [math.fsum(f.losses) for f in ranks]
        shares = [f.grad_share for f in ranks if f.grad_share is not None]
        found[step] = Total(
            step=step,
            mean=math.fsum(losses) / len(losses),
            sum=math.fsum(losses),
            grad_norm=math.sqrt(math.fsum(shares)) if len(shares) == len(ranks) else None,
            lrs=tuple(ranks[0].lrs),
            samples=frozenset(s for f in ranks for s in f.samples),
            apart=next((f.apart for f in ranks if f.apart), None),
            precision=max((f.precision for f in ranks), key=lambda name: TOLERANCE.get(name, (1.0, 1.0))),
        )
    return found


def compare(
    one: Mapping[int, Total], other: Mapping[int, Total], *, offset: int = 0, precision: str | None = None
) -> Comparison:
    """Compare step `offset` + k of `one` with step k of `other`. `precision`: what is computed in, if that is known."""
    pairs = [(one[step + offset], total) for step, total in other.items() if step + offset in one]
    names = [*(total.precision for total in one.values()), *([precision] if precision else [])]
    tolerance = max(TOLERANCE.get(name, TOLERANCE["bfloat16"]) for name in names)
    loss, name = min(
        ((max((_relative(getattr(a, n), getattr(b, n)) for a, b in pairs), default=0.0), n) for n in ("mean", "sum")),
    )
    norms = [(a.grad_norm, b.grad_norm) for a, b in pairs]
    told = [_relative(a, b) for a, b in norms if a is not None and b is not None]
    found = Comparison(steps=len(pairs), loss=loss, grad_norm=max(told, default=None), tolerance=tolerance)
    for a, b in pairs:
        if difference := _apart(a, b, name, tolerance):
            return replace(
                found,
                apart=difference,
                excuse=_excuse(a, b, one.values()),
                other_samples=bool(a.samples and b.samples and a.samples != b.samples),
            )
    return found


def misreported(
    rows: Iterable[Mapping[str, Any]], own: Mapping[int, Total], tolerance: tuple[float, float]
) -> str | None:
    """The first figure of a script's log (`step`, `loss`, `grad_norm`) that is not what its ranks computed together."""
    for row in rows:
        total = own.get(row["step"])
        if total is None:
            continue
        for name, computed, limit in (("loss", total.mean, tolerance[0]), ("grad_norm", total.grad_norm, tolerance[1])):
            if computed is not None and _relative(row[name], computed) > limit:
                said = f"its log has {row[name]:.7g} as `{name}` of step {row['step']}"
                return f"{said}, and its ranks computed {computed:.7g}"
    return None


def _apart(a: Total, b: Total, name: str, tolerance: tuple[float, float]) -> Apart | None:
    rates = next(((x, y) for x, y in zip(a.lrs, b.lrs, strict=False) if _relative(x, y) > 1e-9), None)
    if rates is not None:
        return Apart(a.step, "learning rate", *rates)
    losses = getattr(a, name), getattr(b, name)
    if _relative(*losses) > tolerance[0]:
        return Apart(a.step, "loss", *losses)
    if a.grad_norm is not None and b.grad_norm is not None and _relative(a.grad_norm, b.grad_norm) > tolerance[1]:
        return Apart(a.step, "gradient norm", a.grad_norm, b.grad_norm)
    return None


def _excuse(a: Total, b: Total, steps: Iterable[Total]) -> str | None:
    """Why two runs may compute other numbers in this step; None where they should not."""
    if not a.samples or not b.samples:
        return "what goes into its model was not seen"
    if a.samples != b.samples:
        if len(a.samples) != len(b.samples):
            return f"its global batch changes with the ranks: {len(a.samples)} and {len(b.samples)} samples a step"
        if any(b.samples == step.samples for step in steps):
            return None  # those of another step: it has lost its place in the data
        return "other samples are drawn"
    return a.apart or b.apart


def _relative(a: float, b: float) -> float:
    if a == b or (math.isnan(a) and math.isnan(b)):
        return 0.0
    by = abs(a - b) / max(abs(a), abs(b))
    return math.inf if math.isnan(by) else by
