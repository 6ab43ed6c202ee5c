"""What is shown of the uninterrupted run beside the verdicts: its losses, its saves in time, and who owns what."""

from __future__ import annotations

import math
from statistics import fmean
from typing import Any

from ..events import AsyncSaved, Awaited, Saved
from ..probe.timings import Timings, timings
from ..trace import Trace
from .bench import Measured, Straight, saves_of

Loss = tuple[int, float | None]  # step, and the mean over ranks and micro-batches; None where it is not finite


def observed(straight: Straight) -> dict[str, Any]:
    """The run as JSON values; times are in seconds since the first that is known of any rank."""
    times = [timings(straight.run, end.rank) for end in straight.run.ends]
    zero = min((_first(own) for own in times), default=0.0)
    zero = zero if math.isfinite(zero) else 0.0
    return {
        "losses": losses(straight.measured, offset=0),
        "steps": [[step, _since(zero, at)] for step, at in sorted(times[0].steps.items())],
        "saves": _saves(straight.traces, times, zero),
        "ownership": _ownership([own.owned for own in times]),
    }


def losses(measured: Measured, *, offset: int) -> list[Loss]:
    """The loss of each step; the first step of these is number `offset` + 1."""
    by_step: dict[int, list[float]] = {}
    for own in measured:
        for figures in own:
            by_step.setdefault(figures.step, []).extend(figures.losses)
    means = [(step + offset, fmean(values)) for step, values in sorted(by_step.items()) if step > 0 and values]
    return [(step, mean if math.isfinite(mean) else None) for step, mean in means]


def _first(own: Timings) -> float:
    return min([*own.steps.values(), *(began for began, _ in own.calls.values())], default=math.inf)


def _since(zero: float, at: float | None) -> float | None:
    return None if at is None else round(at - zero, 6)


def _saves(traces: tuple[Trace, ...], times: list[Timings], zero: float) -> list[dict[str, Any]]:
    """The saves in order, the n-th of each rank taken together."""
    of_ranks = [saves_of(trace) for trace in traces]
    saves: list[dict[str, Any]] = []
    for number, save in enumerate(of_ranks[0]):
        ranks = [
            _save_of_rank(own[number], trace, timing, zero) | {"rank": rank}
            for rank, (own, trace, timing) in enumerate(zip(of_ranks, traces, times, strict=True))
            if number < len(own)
        ]
        saves.append(
            {
                "step": save.when.step,
                "target": save.target,
                "file": save.at.file,
                "line": save.at.line,
                "kind": _kind(save),
                "ranks": ranks,
            }
        )
    return saves


def _kind(save: Saved | AsyncSaved) -> str:
    if not isinstance(save, AsyncSaved):
        return "sync"
    return "async, by a process" if save.process else "async"


def _save_of_rank(save: Saved | AsyncSaved, trace: Trace, times: Timings, zero: float) -> dict[str, Any]:
    """When it was called, returned, staged, written and waited for; null where that was not seen.

    `stood_still`: seconds that the program's main thread spent in the call and in waits.
    """
    began, returned = times.calls.get(save.order, (None, None))
    staged, written, futures = returned, returned, set[int]()
    if isinstance(save, AsyncSaved):
        written = times.written.get(save.order)
        futures = {ref.id for ref in (save.future, save.staging) if ref is not None}
        if save.staging is not None:
            staged = times.staged.get(save.order)
    waits = [
        times.waits[e.order]
        for e in trace.of(Awaited)
        if e.future.id in futures and e.order in times.waits and e.when.main_thread
    ]
    call = [(began, returned)] if began is not None and returned is not None and save.when.main_thread else []
    return {
        "called": _since(zero, began),
        "returned": _since(zero, returned),
        "staged": _since(zero, staged),
        "written": _since(zero, written),
        "waits": [[_since(zero, start), _since(zero, end)] for start, end in waits],
        "stood_still": round(sum(end - start for start, end in [*call, *waits]), 6),
    }


def _ownership(ranks: list[tuple[dict[str, Any], ...]]) -> list[dict[str, Any]]:
    """The modules in order, with what each rank has of them, in the order of ranks (0 where it has none)."""
    modules: dict[tuple[int, str], dict[str, Any]] = {}
    for rank, own in enumerate(ranks):
        for entry in own:
            shared = {key: value for key, value in entry.items() if key not in ("bytes", "optimizer_bytes")}
            known = modules.setdefault(
                (entry["model"], entry["module"]),
                {**shared, "bytes": [0] * len(ranks), "optimizer_bytes": [0] * len(ranks)},
            )
            for quantity in ("bytes", "optimizer_bytes"):
                known[quantity][rank] = entry[quantity]
    return list(modules.values())
