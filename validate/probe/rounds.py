"""Ranks that go round a loop more often than others, and wait in it for those that have left it."""

from __future__ import annotations

import ast
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..events import Event, ForwardEntered, RoundsDiffer


@dataclass(frozen=True)
class Line:
    """Where a call of the program's is: the file, where its function begins, and the line that it has come to."""

    file: str
    function: int
    line: int


Stack = tuple[Line, ...]  # the outermost call first


@dataclass(frozen=True)
class Way:
    """What is known of one rank beside its calls: by which of the program's these are made, by their order.

    `batches`: how many its last pass through a loader has, where that is known.
    """

    stacks: Mapping[int, Stack]
    batches: int | None = None


def more_rounds(
    present: Mapping[int, Event], calls: Sequence[Sequence[Event]], at: int, ways: Sequence[Way]
) -> list[int]:
    """The ranks that are alone in another round, where all part at the call number `at` of those they make together.

    `present`: the calls of those that make one there. All have come to its place before, equally often, and the others
    have fewer batches, have ended, or stand in a call after the loop; of one within the loop it is that call which is
    guarded.
    """
    for rank, event in present.items():
        there = [r for r, e in present.items() if e.at == event.at and type(e) is type(event)]
        others = [r for r in range(len(calls)) if r not in there]
        before = [sum(e.at == event.at for e in own[:at]) for own in calls]
        if not others or not min(before) or len(set(before)) > 1:
            continue
        if all(_is_through(ways[rank], event, ways[r], present.get(r)) for r in others) and (
            isinstance(event, ForwardEntered) or any(r in present for r in others)
        ):
            return there
    return []


def _is_through(way: Way, event: Event, other: Way, stands: Event | None) -> bool:
    """Whether another rank, which stands in some call or in none, goes round no more in the loop of this call."""
    if stands is None or (way.batches is not None and other.batches is not None and other.batches < way.batches):
        return True
    return _has_left(way.stacks.get(event.order, ()), other.stacks.get(stands.order, ()))


def _has_left(stack: Stack, elsewhere: Stack) -> bool:
    """Whether the second is no more in a loop that the first is in."""
    for depth, (one, two) in enumerate(zip(stack, elsewhere, strict=False)):
        if one == two:
            continue
        if (one.file, one.function) != (two.file, two.function):
            return False
        around = [loop for loop in _loops(one.file) if one.line in loop]
        if around:  # where the other is in all of these, it may have stopped at a guarded call
            return any(two.line not in loop for loop in around)
        return any(inner.line in loop for inner in stack[depth + 1 :] for loop in _loops(inner.file))
    return False


@functools.lru_cache(maxsize=64)
def _loops(file: str) -> tuple[range, ...]:
    """The lines of each loop in a file; none where it cannot be read."""
    try:
        tree = ast.parse(Path(file).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return ()
    found = (node for node in ast.walk(tree) if isinstance(node, ast.For | ast.While))
    return tuple(range(node.lineno, (node.body[-1].end_lineno or node.lineno) + 1) for node in found)


def mark(own: list[Event], at: Event) -> None:
    """Tell of another round that begins with a call."""
    place = next(i for i, e in enumerate(own) if e.order == at.order)
    since = next(e.order for e in own if e.at == at.at and type(e) is type(at))
    own.insert(place + 1, RoundsDiffer(order=at.order, at=at.at, when=at.when, since=since))
