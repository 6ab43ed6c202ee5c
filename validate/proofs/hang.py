"""What the ranks of a run that has hung were doing at its deadline: who waited in which call, where, and for whom."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..events import (
    AsyncSaved,
    Awaited,
    CollectiveCalled,
    Event,
    ForwardEntered,
    GradientsClipped,
    GroupCreated,
    Loaded,
    MeshCreated,
    Saved,
    Sharded,
    StateApplied,
    StateTaken,
)
from ..launch.job import RankEnd, Run
from ..report import plural
from ..trace import Trace

CALLS: dict[type[Event], str] = {
    AsyncSaved: "dcp.async_save",
    Awaited: "the wait for an asynchronous save",
    GradientsClipped: "clip_grad_norm_",
    GroupCreated: "new_group",
    Loaded: "dcp.load",
    MeshCreated: "the making of a mesh",
    Saved: "dcp.save",
    StateApplied: "the setting of a full state dict",
    StateTaken: "the taking of a full state dict",
}


@dataclass(frozen=True, kw_only=True)
class Standing:
    """One rank at the deadline.

    * `code`: its exit status where it had ended; `at` is None then.
    * `call`: the call that it was in and that several ranks must make together, by the probe or else by its stack.
    * `at`: where in the script, as `file:line`.
    * `missing`: the ranks that were not in that call; none where it may be one of some ranks only.
    * `steps`: optimizer steps that it had done.
    """

    rank: int
    steps: int
    code: int | None = None
    call: str | None = None
    at: str | None = None
    missing: tuple[int, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {**vars(self), "missing": list(self.missing)}


def standing(run: Run, traces: Sequence[Trace]) -> list[Standing]:
    """Where each rank was, in order."""
    found = [_standing(run, end, trace) for end, trace in zip(run.ends, traces, strict=True)]
    ways = [(one.call, one.at) for one, _ in found]
    return [
        replace(one, missing=tuple(rank for rank, way in enumerate(ways) if way != (one.call, one.at)))
        if of_all
        else one
        for one, of_all in found
    ]


def _standing(run: Run, end: RankEnd, trace: Trace) -> tuple[Standing, bool]:
    """Where one rank was, and whether all ranks must make the call together that it was in."""
    here = Standing(rank=end.rank, steps=max((e.when.step or 0 for e in trace.events), default=0), code=end.code)
    if end.code is not None:
        return here, False
    event = next((event for event in reversed(trace.events) if not event.when.finished), None)
    if event is not None:
        return replace(here, call=_call(event), at=str(event.at)), getattr(event, "group", None) is None
    at, inside = _in_script(end, run)
    op = next((name for file, name in inside if file.endswith("distributed_c10d.py") and name != "wrapper"), None)
    if any("/_fully_shard/" in file for file, _ in inside):
        call = f"{op or 'a collective'} of FSDP"
        return replace(here, call=call, at=at), all(sharded.everyone for sharded in trace.of(Sharded))
    return replace(here, call=op, at=at), False


def describe_hang(run: Run, traces: Sequence[Trace]) -> str:
    """The same in words: `still running after 60 s: rank 0 waits in barrier at train.py:9 for rank 1; rank 1 ...`."""
    ranks = standing(run, traces)
    ways: dict[tuple[Any, ...], list[int]] = {}
    for one in ranks:
        ways.setdefault((one.code, one.call, one.at, one.missing), []).append(one.rank)
    parts = [_in_words(on, *way) for way, on in ways.items()]
    steps = min(one.steps for one in ranks)
    slow = f" (after {plural(steps, 'optimizer step')}: if it was training on, try --stop-after)" if steps else ""
    return f"still running after {run.job.deadline:g} s: {'; '.join(parts)}{slow}"


def _in_words(on: list[int], code: int | None, call: str | None, at: str | None, missing: tuple[int, ...]) -> str:
    subject, one = _named(on), len(on) == 1
    if code is not None:
        return f"{subject} had exited with {code}"
    place = f" at {at}" if at else ""
    if call is None:
        return f"{subject} {'is' if one else 'are'}{place or ' somewhere'}, outside any call that the probe watches"
    whom = f" for {_named(list(missing))}" if missing else ""
    return f"{subject} {'waits' if one else 'wait'} in {call}{place}{whom}"


def _named(ranks: list[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


def _call(event: Event) -> str:
    if isinstance(event, CollectiveCalled):
        return event.op
    if isinstance(event, ForwardEntered):
        return f"the forward of `{event.module.name}`"
    return CALLS.get(type(event), type(event).__name__)


def _in_script(end: RankEnd, run: Run) -> tuple[str | None, list[tuple[str, str]]]:
    """The innermost place in the script's own files on the main thread's stack; file and function of what is inside."""
    threads = re.split(r"^(?=(?:Current thread|Thread) 0x)", end.stack or "", flags=re.MULTILINE)
    main = next((thread for thread in threads if thread.startswith("Current")), threads[-1])
    inside: list[tuple[str, str]] = []
    for file, line, function in re.findall(r'^  File "([^"\n]+)", line (\d+) in (.+)', main, re.MULTILINE):
        path = Path(file)
        for folder in (run.job.cwd.resolve(), run.job.script.resolve().parent):
            if path.is_relative_to(folder) and "site-packages" not in path.parts:
                return f"{path.relative_to(folder)}:{line}", inside
        inside.append((file, function))
    return None, inside
