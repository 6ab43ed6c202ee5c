"""The saves of a run in time, and where its loop stood still for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .scale import Scale, scale

WIDTH = 720
LEFT, RIGHT, TOP = 132, 704, 12  # of the lanes in the drawing
LANE, BAR = 28, 16  # heights
SHORTEST = 0.001  # part of the run that a wait must last to be drawn: asking `done()` of a future takes no time
LANES = 24  # saves that are drawn; the table has them all


@dataclass(frozen=True)
class Bar:
    """From `x` on; never too narrow to be seen."""

    x: float
    width: float


@dataclass(frozen=True)
class Lane:
    """One save on rank 0: where the loop stood still for it, when it was written in the background, when staged."""

    y: int
    label: str
    still: list[Bar]
    writing: Bar | None
    staged: float | None


@dataclass(frozen=True)
class Timeline:
    """Where everything lies. `steps` are the ends of optimizer steps; `words` say what it comes to."""

    height: int
    bottom: int
    steps: list[float]
    still: list[Bar]
    lanes: list[Lane]
    x_ticks: list[tuple[float, str]]
    left_out: int
    words: str


@dataclass(frozen=True)
class Row:
    """One save in the table, seconds after its call on rank 0; `slowest`: who stood still longest, and how long."""

    save: dict[str, Any]
    called: float | None
    returned: float | None
    staged: float | None
    written: float | None
    awaited: float | None
    stood_still: float
    slowest: tuple[int, float]


def timeline(run: dict[str, Any]) -> Timeline | None:
    """The drawing of the saves of a run; None where it has none that came to an end."""
    firsts = [(save, save["ranks"][0]) for save in run["saves"] if save["ranks"][0]["called"] is not None]
    if not firsts:
        return None
    steps = [at for _, at in run["steps"]]
    x = scale([0.0, *steps, *(at for _, own in firsts for at in _moments(own))], LEFT, RIGHT)
    lanes = [_lane(number, save, own, x) for number, (save, own) in enumerate(firsts[:LANES], start=1)]
    bottom = TOP + LANE * (len(lanes) + 1)
    still = sum(own["stood_still"] for _, own in firsts)
    lasted = x.high - x.low
    share = f" ({100 * still / lasted:.0f} %)" if lasted else ""
    return Timeline(
        height=bottom + 44,
        bottom=bottom,
        steps=[x(at) for at in steps],
        still=[bar for _, own in firsts for bar in _still(own, x)],
        lanes=lanes,
        x_ticks=x.ticks(6),
        left_out=len(firsts) - len(lanes),
        words=f"on rank 0 the loop stood still for saves for {still:.3g} s of {lasted:.3g} s{share}",
    )


def rows(run: dict[str, Any]) -> list[Row]:
    """The table of the saves of a run."""
    found = []
    for save in run["saves"]:
        own = save["ranks"][0]
        slowest = max(save["ranks"], key=lambda one: one["stood_still"])
        found.append(
            Row(
                save=save,
                called=own["called"],
                returned=_after(own, own["returned"]),
                staged=_after(own, own["staged"]),
                written=_after(own, own["written"]),
                awaited=_after(own, max((end for _, end in own["waits"]), default=None)),
                stood_still=own["stood_still"],
                slowest=(slowest["rank"], slowest["stood_still"]),
            )
        )
    return found


def _lane(number: int, save: dict[str, Any], own: dict[str, Any], x: Scale) -> Lane:
    writes = own["returned"] is not None and own["written"] is not None and own["written"] > own["returned"]
    in_background = own["staged"] is not None and own["staged"] != own["returned"]
    return Lane(
        y=TOP + LANE * number,
        label=f"step {save['step']}, {'sync' if save['kind'] == 'sync' else 'async'}",
        still=_still(own, x),
        writing=_bar(own["returned"], own["written"], x) if writes else None,
        staged=x(own["staged"]) if in_background else None,
    )


def _still(own: dict[str, Any], x: Scale) -> list[Bar]:
    call = [(own["called"], own["returned"])] if own["returned"] is not None else []
    waits = [(began, ended) for began, ended in own["waits"] if ended - began >= SHORTEST * (x.high - x.low)]
    return [_bar(began, ended, x) for began, ended in [*call, *waits]]


def _bar(began: float, ended: float, x: Scale) -> Bar:
    return Bar(x(began), max(1.5, round(x(ended) - x(began), 1)))


def _moments(own: dict[str, Any]) -> list[float]:
    waits = [at for wait in own["waits"] for at in wait]
    return [at for at in (own["called"], own["returned"], own["staged"], own["written"], *waits) if at is not None]


def _after(own: dict[str, Any], at: float | None) -> float | None:
    return None if at is None or own["called"] is None else at - own["called"]
