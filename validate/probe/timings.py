"""When a rank stepped, when its saves were called, staged, written and waited for, and what it owned meanwhile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..launch.job import Run
from .record import notes

Span = tuple[float, float]  # seconds, on the machine's monotonic clock


@dataclass(frozen=True)
class Timings:
    """Times of one rank, and what it held.

    * `steps`: when each optimizer step had ended, by number; step 0 is the moment before the first one.
    * `calls`: by the order of a save's or a load's event, how long the program was in the call.
    * `staged`, `written`: by the order of an asynchronous save's event, when its state was copied in the background and
      when it was written. Absent where that failed, or never came to be.
    * `waits`: by the order of an `Awaited` event, how long the program waited.
    * `owned`: what the rank holds of each module (`owned.py`).
    """

    steps: Mapping[int, float] = field(default_factory=dict)
    calls: Mapping[int, Span] = field(default_factory=dict)
    staged: Mapping[int, float] = field(default_factory=dict)
    written: Mapping[int, float] = field(default_factory=dict)
    waits: Mapping[int, Span] = field(default_factory=dict)
    owned: tuple[dict[str, Any], ...] = ()


def timings(run: Run, rank: int) -> Timings:
    """The times of one rank of a run under the probe."""
    by_kind: dict[str, list[dict[str, Any]]] = {"span": [], "figures": [], "owned": []}
    for note in notes(run, rank, *by_kind):
        by_kind[note["note"]].append(note)

    def lasted(what: str) -> dict[int, Span]:
        return {note["order"]: (note["began"], note["ended"]) for note in by_kind["span"] if note["what"] == what}

    return Timings(
        steps={note["figures"]["step"]: note["time"] for note in by_kind["figures"]},
        calls=lasted("call"),
        staged={order: ended for order, (_, ended) in lasted("staging").items()},
        written={order: ended for order, (_, ended) in lasted("writing").items()},
        waits=lasted("wait"),
        owned=tuple(next((note["of"] for note in by_kind["owned"]), ())),
    )
