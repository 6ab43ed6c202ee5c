"""What an observer saw of one program, in order, and the questions that rules ask of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Any, TypeVar

from .events import Escaped, Event, Location, Origin, Ref
from .records import record
from .target import Target

E = TypeVar("E", bound=Event)


@record(frozen=True, slots=True)
class Note:
    """Something that the observer could not know, shown by `--verbose`: the reason for a rule's silence.

    `fault`: the observer is to blame, not the program; that is always shown.
    """

    at: Location
    text: str
    fault: bool = False


@record(frozen=True)
class Trace:
    """The events of one program, in program order: all of it for the reader, one rank of it for the probe.

    * `holders`: for a module's id, the ids of the modules that hold it directly. It is the shape of the model, not
      its history.
    * `ended`: the observer saw the program to its end. When False nothing can be concluded from an event that is
      absent.
    * `ranks`: how many ranks ran (probe), None for the reader.
    * `target`: the torch that the program is written for (reader).
    """

    origin: Origin
    events: tuple[Event, ...]
    holders: Mapping[int, frozenset[int]] = field(default_factory=dict)
    notes: tuple[Note, ...] = ()
    ended: bool = True
    ranks: int | None = None
    target: Target | None = None
    # What `of` has looked for: there are as many rules, and each asks for few classes, many times.
    _of: dict[Any, tuple[Any, ...]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def of(self, *types: type[E]) -> Iterator[E]:
        """The events of these classes, in order."""
        if types not in self._of:
            self._of[types] = tuple(e for e in self.events if isinstance(e, types))
        return iter(self._of[types])

    def before(self, event: Event, *types: type[E]) -> Iterator[E]:
        """The events of these classes that come before `event` in an execution that reaches both."""
        taken = _sides(event)
        return (e for e in self.of(*types) if e.order < event.order and _reached(e, taken))

    def after(self, event: Event, *types: type[E]) -> Iterator[E]:
        """The events of these classes that come after `event` in an execution that reaches both."""
        taken = _sides(event)
        return (e for e in self.of(*types) if e.order > event.order and _reached(e, taken))

    def between(self, first: Event, last: Event, *types: type[E]) -> Iterator[E]:
        """The events of these classes after `first` and before `last`."""
        taken = _sides(last)
        return (e for e in self.after(first, *types) if e.order < last.order and _reached(e, taken))

    def inside(self, inner: Ref, outer: Ref) -> bool:
        """Whether module `inner` is held by `outer`, at any depth; False for a module and itself."""
        todo, seen = [inner.id], set[int]()
        while todo:
            for holder in self.holders.get(todo.pop(), frozenset()) - seen:
                if holder == outer.id:
                    return True
                seen.add(holder)
                todo.append(holder)
        return False

    def within(self, inner: Ref, outer: Ref) -> bool:
        """Whether module `inner` is `outer`, or held by it at any depth."""
        return inner == outer or self.inside(inner, outer)

    def related(self, one: Ref, other: Ref) -> bool:
        """Whether the two are the same module or one holds the other."""
        return self.within(one, other) or self.inside(other, one)

    def escaped(self, ref: Ref, since: Event | None = None) -> bool:
        """Whether `ref` went out of the observer's sight, at any time or (`since`) only later than an event."""
        return any(e.of == ref and (since is None or e.order > since.order) for e in self.of(Escaped))


def together(one: Event, other: Event) -> bool:
    """Whether one execution can reach both events: they do not lie on opposite sides of one branch."""
    return _reached(other, _sides(one))


def _sides(event: Event) -> dict[int, bool]:
    """The side that is taken of each branch on the way to an event."""
    return {c.condition: c.taken for c in event.when.path}


def _reached(event: Event, taken: Mapping[int, bool]) -> bool:
    """Whether an execution that takes these sides can reach the event."""
    return all(taken.get(c.condition, c.taken) == c.taken for c in event.when.path)


def implied(event: Event, by: Event) -> bool:
    """Whether every execution that reaches `by` also takes the branches that lead to `event`."""
    return set(event.when.path) <= set(by.when.path)
