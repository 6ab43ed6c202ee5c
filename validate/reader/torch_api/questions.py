"""What each rank finds out for itself: which files it sees, and what its clock says."""

from __future__ import annotations

from typing import Literal

from ..values import Sym, Value
from ..walk.calls import Call
from ..walk.core import Walk
from ..walk.folders import may_be_path
from .table import anything, api


def answer(walk: Walk, about: Literal["files", "clock"], *parts: object) -> Sym:
    """What a rank is told that asks for itself; equal for equal parts."""
    made = walk.sym(*parts)
    walk.asked[made.key] = about
    return made


@api("os.path.isdir", "os.path.islink", "os.path.getmtime", "os.path.getsize", "os.access")
def _looks(call: Call) -> Value:
    return answer(call.walk, "files")


@anything("is_dir")
def _is_folder(call: Call, receiver: Value) -> Value | None:
    return looked_at(call, receiver)


def looked_at(call: Call, receiver: Value) -> Value | None:
    """`path.exists()`; what takes a path itself (`storage.exists(path)`) may well have asked on rank 0 alone."""
    return answer(call.walk, "files") if may_be_path(receiver) and not call.everything() else None


@api(
    "time.time", "time.monotonic", "time.perf_counter", "time.time_ns", "time.monotonic_ns", "time.perf_counter_ns",
    "datetime.datetime.now", "datetime.datetime.utcnow",
)  # fmt: skip
def _clock(call: Call) -> Value:
    return answer(call.walk, "clock")
