"""The losses of the straight run and of the resumed one, drawn over each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .scale import Scale, scale

WIDTH, HEIGHT = 720, 300
LEFT, RIGHT, TOP, BOTTOM = 64, 704, 28, 256  # of the plot in the drawing
DOTS = 60  # steps up to which each is marked


@dataclass(frozen=True)
class Curve:
    """`lines` are the stretches without a gap, as SVG has points of a polyline; `dots` the single ones to mark."""

    lines: list[str]
    dots: list[tuple[float, float]]


@dataclass(frozen=True)
class LossChart:
    """Where everything lies; `x_ticks` and `y_ticks` are places with words. `stopped`: the x of the kill."""

    straight: Curve
    resumed: Curve | None
    x_ticks: list[tuple[float, str]]
    y_ticks: list[tuple[float, str]]
    stopped: float | None
    gaps: list[int]
    words: str


Pairs = list[Any]  # of `[step, loss]`


def loss_chart(straight: Pairs, resumed: Pairs | None, stopped_after: int | None) -> LossChart | None:
    """The chart of `[step, loss]` pairs, in which a loss that is not finite is None; None where there is no loss."""
    both = [*straight, *(resumed or [])]
    values = [loss for _, loss in both if loss is not None]
    if not values:
        return None
    x, y = scale((step for step, _ in both), LEFT, RIGHT), scale(values, BOTTOM, TOP)
    few = len(straight) <= DOTS
    return LossChart(
        straight=_curve(straight, x, y, dots=few),
        resumed=_curve(resumed, x, y, dots=few) if resumed else None,
        x_ticks=x.ticks(8, whole=True),
        y_ticks=y.ticks(5),
        stopped=None if stopped_after is None or not resumed else x(stopped_after),
        gaps=sorted({step for step, loss in both if loss is None}),
        words=_words(straight, resumed),
    )


def _curve(pairs: Pairs, x: Scale, y: Scale, *, dots: bool) -> Curve:
    stretches: list[list[tuple[float, float]]] = [[]]
    for step, loss in pairs:
        if loss is None:
            stretches.append([])
        else:
            stretches[-1].append((x(step), y(loss)))
    alone = [stretch[0] for stretch in stretches if len(stretch) == 1]
    return Curve(
        lines=[" ".join(f"{at},{up}" for at, up in stretch) for stretch in stretches if len(stretch) > 1],
        dots=[point for stretch in stretches for point in stretch] if dots else alone,
    )


def _words(straight: Pairs, resumed: Pairs | None) -> str:
    """What the drawing shows, for those who do not see it."""
    parts = [_range("straight run", straight)] if straight else []
    if resumed:
        parts.append(_range("resumed run", resumed))
        known = dict(map(tuple, straight))
        common = [(known[step], loss) for step, loss in resumed if known.get(step) is not None and loss is not None]
        if common:
            most = max(abs(one - other) for one, other in common)
            parts.append("equal at every common step" if most == 0 else f"apart by at most {most:.6g}")
    return "; ".join(parts)


def _range(name: str, pairs: Pairs) -> str:
    (first, before), (last, after) = pairs[0], pairs[-1]
    return f"{name}: loss {_number(before)} at step {first}, {_number(after)} at step {last}"


def _number(loss: float | None) -> str:
    return "not finite" if loss is None else f"{loss:.6g}"
