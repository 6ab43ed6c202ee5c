"""Collectives under conditions on the rank: which of them every rank comes to all the same."""

from __future__ import annotations

import ast
import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...events import Event, GroupInitialised, Location
from ..values import Path, Step, Sym

if TYPE_CHECKING:
    from .core import Walk


_CALLS = 3  # further away from the condition, what a program keeps track of by itself is out of sight


@dataclass
class Pending:
    """An event whose circumstances are settled when the walk is over. It is the `event.order`-th of the walk."""

    event: Event
    path: Path
    scopes: tuple[int, ...]  # of the functions that it happens in, the innermost last
    loops: int  # that it happens in
    serving: frozenset[int]  # conditions on the rank, under which it happens in a loop without end
    calls: int  # that lead here from the last condition on the rank
    asked: Location | None  # where that is


@dataclass(frozen=True)
class Unseen:
    """A call of what has no source. `seen` is how many events there were before."""

    path: Path
    scopes: tuple[int, ...]  # of the functions that it happens in, the innermost last
    seen: int


@dataclass
class _Site:
    """A collective that is called at one place, once or in the rounds of a loop, and the ranks that come there."""

    calls: list[Pending]
    steps: dict[tuple[int, bool], Step]


class Pairing:
    """The paths of the events of a walk, without the ranks where both sides of a rank condition call a collective.

    Every rank then calls one, as often: a call counts once, however many rounds of a loop were walked. Those that one
    function calls on both sides belong together before those of different functions do.
    """

    def __init__(self, walk: Walk, pending: Sequence[Pending]) -> None:
        self.walk, self.pending = walk, pending
        self.paths = [self._asking_the_rank(one.path) for one in pending]  # by the number of the event
        self._settle()

    def _settle(self) -> None:
        """Take the conditions on the rank off the paths that do not keep anybody away."""
        sites: dict[object, _Site] = {}
        for pending, path in zip(self.pending, self.paths, strict=True):
            steps = {(s.condition, s.taken): s for s in path if s.ranks is not None}
            if steps and pending.event.collective:
                calls = tuple(map(self.walk.called_at.get, pending.scopes))
                key = (frozenset(steps), type(pending.event), pending.event.at, calls)
                sites.setdefault(key, _Site([], dict(steps))).calls.append(pending)
        guarded = list(sites.values())
        for by_function in (True, False):
            while self._pair(guarded, by_function):
                guarded = [site for site in guarded if site.steps]
        self._pair_by_words([site for site in guarded if len(site.steps) == 1])
        for site in guarded:
            for pending, step in itertools.product(site.calls, site.steps.values() if len(site.steps) == 1 else ()):
                if (
                    pending.calls > _CALLS
                    or self.walk.handles_failure(pending.path)  # others may wait elsewhere
                    or step.condition in pending.serving  # those who come here wait for what the others send
                    or _of_ranks_unknown(step)
                    or self._may_hold_everywhere(pending, step)
                    or self._all_that_are_left(pending, step)
                    or self._listened_for(pending, step)
                    or self._made_up_for(pending, step)
                    or self._on_the_other_side(pending, step)
                    or self._instead_of_another(pending, step)
                    or self._perhaps_met(pending, step)
                ):
                    self._take_off(step, [pending])

    def _pair(self, guarded: list[_Site], by_function: bool) -> bool:
        """Find calls that lie on the two sides of a condition and have all others in common; whether there were any."""
        found = False
        waiting: dict[object, list[_Site]] = {}
        for site in guarded:
            event, scope = site.calls[0].event, site.calls[0].scopes[-1] if by_function else 0
            for (condition, taken), step in list(site.steps.items()):
                rest = frozenset(site.steps) - {(condition, taken)}
                kind = (*_kind(event), scope, rest, condition)
                others = waiting.get((kind, not taken), [])
                while others:
                    other = others.pop(0)
                    if other.steps.keys() == rest | {(condition, not taken)}:  # it may have been paired meanwhile
                        break
                else:
                    waiting.setdefault((kind, taken), []).append(site)
                    continue
                del site.steps[condition, taken], other.steps[condition, not taken]
                self._take_off(step, [*site.calls, *other.calls])
                found = True
                break
        return found

    def _pair_by_words(self, guarded: list[_Site]) -> None:
        """Find calls under opposite conditions that are written alike, of values that are not known to be the same."""
        waiting: dict[object, list[_Site]] = {}
        for site in guarded:
            (step,) = site.steps.values()
            words, holds = _in_words(step.ranks or "")
            kind = (*_kind(site.calls[0].event), words)
            if not (others := waiting.get((kind, not holds))):
                waiting.setdefault((kind, holds), []).append(site)
                continue
            for paired in (site, others.pop(0)):
                _, step = paired.steps.popitem()
                self._take_off(step, paired.calls)

    def _take_off(self, step: Step, calls: Sequence[Pending]) -> None:
        """A condition on the rank keeps nobody away from these; nor do the questions of a rank that meets it."""
        for call in calls:
            path = self.paths[call.event.order]
            self.paths[call.event.order] = tuple(
                dataclasses.replace(s, question=None) for s in path if s.condition != step.condition
            )

    def _asking_the_rank(self, path: Path) -> Path:
        """The path without conditions on the rank that one of the others has decided, such as `a and rank == 0`."""
        if not any(step.ranks for step in path):
            return path
        taken = {s.condition: s.taken for s in path}
        follows = self.walk.follows
        return tuple(
            step
            for step in path
            if step.ranks is None or (follows.get(step, set()).isdisjoint(path) and not self._is_decided(step, taken))
        )

    def _is_decided(self, step: Step, taken: Mapping[int, bool]) -> bool:
        """Whether it is of several conditions, one of which, not on the rank, was met and is enough for its answer."""
        how, *parts = self.walk.parts_of(step.condition) or (None,)
        if (how, step.taken) not in (("and", False), ("or", True)):
            return False
        for part in parts:
            if isinstance(part, Sym):
                if not part.rank and taken.get(part.key) is (step.taken ^ part.flip):
                    return True
            elif taken.get(self.walk.key("if", part)) is step.taken:
                return True
        return False

    def _may_hold_everywhere(self, pending: Pending, step: Step) -> bool:
        """Whether a rank is not some number of which another condition tells, perhaps that it is no rank's."""
        differs = ast.parse(step.ranks or "", mode="eval").body
        if not (isinstance(differs, ast.Compare) and isinstance(differs.ops[0], ast.NotEq)):
            return False
        numbers = {ast.unparse(s) for s in (differs.left, *differs.comparators) if not isinstance(s, ast.Constant)}
        tests = self.walk.tests
        known = [tests[s.condition][0] for s in pending.path if s.ranks is None and s.condition in tests]
        compared = (part for test in known for part in ast.walk(test) if isinstance(part, ast.Compare))
        return any(
            ast.unparse(side) in numbers
            for part in compared
            if isinstance(part.ops[0], ast.Eq | ast.NotEq | ast.Lt | ast.LtE | ast.Gt | ast.GtE)
            for side in (part.left, *part.comparators)
        )

    def _all_that_are_left(self, pending: Pending, step: Step) -> bool:
        """Whether the others had left before the group was made, which has those only that come here."""
        return any(
            isinstance(other.event, GroupInitialised) and step in other.path
            for other in self.pending[: pending.event.order]
        )

    def _listened_for(self, pending: Pending, step: Step) -> bool:
        """Whether the other ranks call it in a loop of their own, in which they may wait for whatever these do."""
        return any(
            other.loops > pending.loops
            and _alike(other.event, pending.event)
            and any(s.condition == step.condition and s.taken != step.taken for s in other.path)
            for other in self.pending
        )

    def _instead_of_another(self, pending: Pending, step: Step) -> bool:
        """Whether these ranks call it where they do not call another, which the others meet."""
        sides = {s.condition: s.taken for s in pending.path}
        return any(
            _alike(other.event, pending.event)
            and step in other.path
            and step not in self.paths[other.event.order]
            and any(sides.get(s.condition, s.taken) is not s.taken for s in other.path)
            for other in self.pending
        )

    def _perhaps_met(self, pending: Pending, step: Step) -> bool:
        """Whether the others call something instead that has no source, such as a method to follow the first rank."""
        order, scopes = pending.event.order, pending.scopes
        for unseen in self.walk.unseen:
            opposite = any(s.condition == step.condition and s.taken is not step.taken for s in unseen.path)
            if opposite and scopes[: len(unseen.scopes)] == unseen.scopes:
                first, last = sorted((order, unseen.seen))
                between = self.pending[first:last]
                if all(any(s.condition == step.condition for s in other.path) for other in between):
                    return True
        return False

    def _on_the_other_side(self, pending: Pending, step: Step) -> bool:
        """Whether the condition on the rank is one of several that all hold, and else a like call is come to."""
        part = (step.condition, step.taken)
        path = self.paths[pending.event.order]
        whole = {s.condition for s in path if s.taken and part in self.walk.parts_of(s.condition)}
        return any(
            _alike(other.event, pending.event)
            and any(not s.taken and s.condition in whole for s in self.paths[other.event.order])
            for other in self.pending
        )

    def _made_up_for(self, pending: Pending, step: Step) -> bool:
        """Whether those who call it leave the function or loop next, and the others come to a like call later."""
        event = pending.event
        path = {s.condition: s.taken for s in self.paths[event.order]}
        left = {
            scope
            for scope, taken, seen in self.walk.left_early
            if scope in pending.scopes and seen > event.order and step in taken
            and all(path.get(s.condition, s.taken) == s.taken for s in taken)
        }  # fmt: skip
        return any(
            _alike(other.event, event)
            and other.event.order > event.order
            and step not in self.paths[other.event.order]
            and left.intersection(other.scopes)
            for other in self.pending
        )


def _of_ranks_unknown(step: Step) -> bool:
    """Whether a rank is looked for in a collection or between bounds of which the program does not tell: all may be."""
    test = ast.parse(step.ranks or "", mode="eval").body
    while isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        test = test.operand
    if not isinstance(test, ast.Compare):
        return False
    if isinstance(test.ops[0], ast.In | ast.NotIn):
        return isinstance(test.comparators[0], ast.Name | ast.Attribute | ast.Subscript)
    ends = (test.left, test.comparators[-1])
    return len(test.ops) == 2 and not any(isinstance(end, ast.Constant) for end in ends)


def _in_words(ranks: str) -> tuple[str, bool]:
    """A condition on the rank as one that its opposite is written like, and whether it is that or the opposite."""
    test, holds = ast.parse(ranks, mode="eval").body, True
    while isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        test, holds = test.operand, not holds
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        is_above_0 = isinstance(test.ops[0], ast.Gt) and ast.unparse(test.comparators[0]) == "0"
        if is_above_0 or isinstance(test.ops[0], ast.NotEq):
            return f"{ast.unparse(test.left)} == {ast.unparse(test.comparators[0])}", not holds
    return ast.unparse(test), holds


def _alike(one: Event, other: Event) -> bool:
    """Whether both call the same collective."""
    return _kind(one) == _kind(other)


def _kind(event: Event) -> tuple[type[Event], str]:
    return type(event), getattr(event, "op", "")
