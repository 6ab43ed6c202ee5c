"""Traces written by hand: each event stands on the line of its number, counted from 1, unless it says where."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pytorch_fsdp2_dcp.validate.events import (
    AsyncSaved,
    Choice,
    Circumstances,
    Entry,
    Event,
    Form,
    Kind,
    Location,
    Origin,
    Ref,
    Via,
)
from pytorch_fsdp2_dcp.validate.rules import judge
from pytorch_fsdp2_dcp.validate.trace import Trace

MODEL, BLOCKS, HEAD, OTHER = (
    Ref(1, "model"),
    Ref(2, "model.blocks[*]", many=True),
    Ref(3, "model.head"),
    Ref(4, "other"),
)
ATTENTION = Ref(5, "model.blocks[*].attention", many=True)
OPTIMIZER, STATE, FUTURE, GROUP = Ref(11, "optimizer"), Ref(12, "state"), Ref(13, "future"), Ref(14, "group")
HOLDERS = {BLOCKS.id: frozenset({MODEL.id}), HEAD.id: frozenset({MODEL.id}), ATTENTION.id: frozenset({BLOCKS.id})}

Step = tuple[type[Event], dict[str, Any]]


def does(cls: type[Event], /, *, only: str | None = None, branch: Choice | None = None, **fields: Any) -> Step:
    """One event; `only` and `branch` are its circumstances."""
    return cls, {**fields, "when": Circumstances(only=only, path=() if branch is None else (branch,))}


def saves_async(future: Ref = FUTURE, **circumstances: Any) -> Step:
    return does(AsyncSaved, future=future, **circumstances)


def trace(
    *steps: Step, holders: Mapping[int, frozenset[int]] = HOLDERS, ended: bool = True, origin: Origin = "reader"
) -> Trace:
    """The trace of these events, in this order."""
    events = tuple(
        cls(order=number, **{"at": Location("train.py", number), **fields})
        for number, (cls, fields) in enumerate(steps, 1)
    )
    return Trace(origin=origin, events=events, holders=holders, ended=ended)


def found(*steps: Step, **of_trace: Any) -> list[tuple[str, int]]:
    """The code and line of each finding, by all rules."""
    return [(finding.code, finding.at.line) for finding in judge([trace(*steps, **of_trace)])]


def entry(kind: Kind, of: Ref | None, via: Via, *, form: Form = Form.UNKNOWN, aliased: bool | None = None) -> Entry:
    return Entry(key=kind.value, kind=kind, of=of, via=via, form=form, aliased=aliased)
