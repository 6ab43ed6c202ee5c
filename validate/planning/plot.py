"""A plan as a picture, by matplotlib: what memory is made of, and the time lost by how often a checkpoint is saved.

Only its object interface is used: no display is needed, and neither pyplot nor a user's style has a say. The same plan
gives the same bytes.
"""

from __future__ import annotations

import importlib
import io
import warnings
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from ..checkpoint.show import size
from ..quantities import shown_seconds
from .interval import Interval, lost_share
from .report import Plan, heading

SUFFIXES = (".png", ".svg")
_COLOURS = {  # of Okabe and Ito, which people of all kinds of colour vision tell apart
    "parameters": "#0072B2",
    "gradients": "#56B4E9",
    "optimizer": "#009E73",
    "buffers": "#000000",
    "activations": "#E69F00",
    "temporary": "#F0E442",
    "gathered": "#CC79A7",
}
_LIMIT, _CURVES = "#D55E00", ("#0072B2", "#E69F00", "#009E73")
_TIMES = [seconds * unit for unit in (1, 60, 3600) for seconds in (1, 2, 5, 10, 20)]  # and, in days:
_TIMES += [86400 * 10**power * days for power in range(4) for days in (1, 2, 5)]
_AROUND = 12  # the curves go from the shortest optimum by so many times less to the longest by so many times more
_SETTINGS = {"svg.hashsalt": "fsdp2 plan", "svg.fonttype": "path", "font.size": 9}
_UNDATED = {".png": {"Software": None}, ".svg": {"Date": None, "Creator": None}}


def has_matplotlib() -> bool:
    """Whether a plan can be drawn."""
    return find_spec("matplotlib") is not None


def picture(plan: Plan, suffix: str) -> bytes:
    """The file, of a format that is one of `SUFFIXES`."""
    matplotlib: Any = importlib.import_module("matplotlib")
    style: Any = importlib.import_module("matplotlib.style")
    written = io.BytesIO()
    with style.context("default"), matplotlib.rc_context(_SETTINGS), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # of a name in letters that the font lacks
        figure = draw(plan)
        figure.savefig(written, format=suffix[1:], dpi=150, metadata=_UNDATED[suffix])
    return written.getvalue()


def draw(plan: Plan) -> Any:
    """The figure: memory of a rank, and below it the curve, if there is a time between failures."""
    bars = _bars(plan)
    curves: dict[Interval, list[str]] = {}  # and the ways of saving that have it
    for saving in plan.savings:
        if saving.interval is not None:
            curves.setdefault(saving.interval, []).append(saving.mode)
    heights = [1.2 + 0.38 * len(bars), *([3.2] if curves else [])]
    figure = importlib.import_module("matplotlib.figure").Figure(figsize=(10, sum(heights) + 0.6), layout="constrained")
    figure.suptitle("\n".join(heading(plan)), fontsize="medium", parse_math=False)
    memory, *below = figure.subplots(len(heights), height_ratios=heights, squeeze=False)[:, 0]
    _memory(memory, bars, plan.limit)
    if below:
        _lost(below[0], curves, plan.seconds or 0.0)
    return figure


def _bars(plan: Plan) -> dict[str, Mapping[str, int]]:
    """What each bar stands for, and its bytes by category: this plan, then the meshes that were proposed instead."""
    memory = plan.memory
    between = {"parameters": memory.parameters, "optimizer": memory.optimizer, "buffers": memory.buffers}
    bars = {"between two steps": between, f"peak, in {memory.where}": memory.at_peak}
    least = () if plan.least is None else (plan.least,)
    for proposal in (*(plan.fitting or ()), *least):
        if (proposal.mesh, proposal.checkpointing) != (plan.mesh, plan.training.checkpointing):
            full = ",\nactivation checkpointing full" if proposal.checkpointing else ""
            bars[f"peak of {proposal.mesh}{full}"] = proposal.memory.at_peak
    return bars


def _memory(axes: Any, bars: Mapping[str, Mapping[str, int]], limit: int | None) -> None:
    """Stacked bars, each with its sum; the device's size as a line."""
    places = range(len(bars))
    ends = [0] * len(bars)
    for category, colour in _COLOURS.items():
        widths = [bar.get(category, 0) for bar in bars.values()]
        if any(widths):
            axes.barh(places, widths, left=ends, color=colour, edgecolor="white", linewidth=0.5, label=category)
            ends = [end + width for end, width in zip(ends, widths, strict=True)]
    for place, end in zip(places, ends, strict=True):
        axes.annotate(size(end), (end, place), xytext=(4, 0), textcoords="offset points", va="center",
                      bbox={"facecolor": "white", "edgecolor": "none", "pad": 1})  # fmt: skip
    if limit is not None:
        axes.axvline(limit, color=_LIMIT, linestyle="--", label=f"--fits {size(limit)}")
    axes.set_xlim(0, 1.12 * max(*ends, limit or 0))
    axes.set_yticks(places, list(bars), parse_math=False)
    axes.invert_yaxis()
    axes.xaxis.set_major_formatter(lambda number, _: size(round(number)))
    _frame(axes, "x", "memory of a rank")
    _legend(axes, 4)


def _lost(axes: Any, curves: Mapping[Interval, Sequence[str]], save: float) -> None:
    """A curve for each cost of a save, with its optima by Young and by Daly; what is shorter than a save is in grey."""
    optima = [seconds for interval in curves for seconds in (interval.young, interval.daly, interval.every)]
    low, high = min(optima) / _AROUND, max(optima) * _AROUND
    every = [low * (high / low) ** (index / 400) for index in range(401)]
    shares: list[float] = []
    for colour, (interval, modes) in zip(_CURVES, curves.items(), strict=False):
        *curve, young, daly = (
            lost_share(seconds, interval.cost, interval.mtbf, interval.restart)
            for seconds in (*every, interval.young, interval.daly)
        )
        shares += curve
        axes.plot(every, curve, color=colour, label=f"{', '.join(modes)}: stops for {shown_seconds(interval.cost)}")
        hollow = {"markersize": 9, "markerfacecolor": "white"}
        axes.plot(interval.young, young, "o", color=colour, label=f"Young: {shown_seconds(interval.young)}", **hollow)
        axes.plot(interval.daly, daly, "D", color=colour, label=f"Daly: {shown_seconds(interval.daly)}", markersize=5)
    if save > low:
        axes.axvspan(low, save, color="0.9", zorder=0)
        words = f"shorter than a save, {shown_seconds(save)}"
        axes.annotate(words, (0, 0), xycoords="axes fraction", xytext=(4, 4), textcoords="offset points")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(low, high)
    axes.set_ylim(min(shares) / 3, 1)
    axes.set_xticks(_ticks(low, high))
    axes.xaxis.set_major_formatter(lambda seconds, _: shown_seconds(seconds))
    axes.yaxis.set_major_formatter(lambda share, _: f"{100 * share:.3g} %")
    axes.minorticks_off()
    axes.set_ylabel("time lost to saves and failures")
    _frame(axes, "both", "time between two saves")
    _legend(axes, len(curves))


def _ticks(low: float, high: float) -> list[float]:
    """Round times, not too near to each other on a logarithmic axis."""
    ticks: list[float] = []
    for time in _TIMES:
        if low <= time <= high and (not ticks or time / ticks[-1] >= (high / low) ** 0.09):
            ticks.append(time)
    return ticks


def _legend(axes: Any, columns: int) -> None:
    axes.legend(loc="lower left", bbox_to_anchor=(-0.02, 1), ncols=columns, frameon=False, handlelength=1.5)


def _frame(axes: Any, grid: str, label: str) -> None:
    axes.set_xlabel(label)
    axes.grid(axis=grid, color="0.85", linewidth=0.5)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
