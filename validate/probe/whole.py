"""Whole tensors of the training state after one step, put together from what the ranks hold of them.

The probe takes the parts in `parts.py`; a tensor is known by its fingerprint, which does not depend on the mesh.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any, Literal

from ..fingerprint import MASK
from ..launch.job import Run
from .record import notes

Group = Literal["parameters", "optimizer state", "buffers", "weights beside"]
GROUPS: tuple[Group, ...] = ("parameters", "optimizer state", "buffers", "weights beside")


@dataclass(frozen=True, kw_only=True)
class Part:
    """What one rank holds of a tensor: its block's place and fingerprint, and those of casts to other dtypes."""

    dtype: str
    shape: tuple[int, ...]
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    sum: int
    casts: Mapping[str, int] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """The part as plain JSON values."""
        return {**vars(self), "casts": dict(self.casts)}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Part:
        """What `as_json` gave."""
        shape, offsets, sizes = (tuple(fields[name]) for name in ("shape", "offsets", "sizes"))
        return cls(
            dtype=fields["dtype"], shape=shape, offsets=offsets, sizes=sizes, sum=fields["sum"], casts=fields["casts"]
        )


@dataclass(frozen=True, kw_only=True)
class Whole:
    """A tensor over all ranks.

    `sums`: its fingerprint; several where ranks hold copies of the whole tensor that differ, none where its shards have
    copies that differ or do not cover it. `casts`: that of its cast to each other floating dtype, where it has one.
    """

    dtype: str
    shape: tuple[int, ...]
    sums: frozenset[int]
    casts: Mapping[str, int]


@dataclass(frozen=True)
class WholeState:
    """The tensors of the state by group and name, `others` values of optimizer state that are no tensors (digests).

    `names`: every FQN of each parameter, and which model's it is, by the name that it goes by here: several where it
    is tied. All numbers are those of one rank.
    """

    tensors: Mapping[Group, Mapping[str, Whole]]
    others: Mapping[str, int]
    names: Mapping[str, tuple[tuple[int, str], ...]]

    def count(self, carried: AbstractSet[str]) -> int:
        """How many tensors and values `differences` looks at."""
        return len(self.others) + sum(_is_compared(g, name, carried) for g in GROUPS for name in self.tensors[g])


def _is_compared(group: Group, name: str, carried: AbstractSet[str]) -> bool:
    """Of the weights beside those that are stepped, those of what is in `carried` are; all others."""
    return group != "weights beside" or name.rpartition("[")[0] in carried


def whole_state(run: Run) -> WholeState | None:
    """The state that was taken in `run`; None where a rank took none.

    The probe takes it when the step has ended and, where another follows, before that consumes it: a program may change
    state in between. The last of these is what a checkpoint holds.
    """
    taken = []
    for end in run.ends:
        found = list(notes(run, end.rank, "whole"))
        if not found:
            return None
        taken.append(found[-1])
    groups: dict[Group, dict[str, Whole]] = {}
    for group in GROUPS:
        parts: dict[str, list[Part]] = {}
        for note in taken:
            for name, fields in note["parts"].get(group, {}).items():
                parts.setdefault(name, []).append(Part.from_json(fields))
        groups[group] = {name: _whole(held) for name, held in parts.items()}
    others = {name: crc for note in taken for name, crc in note["others"].items()}
    names = {name: tuple((number, fqn) for number, fqn in fqns) for name, fqns in taken[0]["names"].items()}
    return WholeState(groups, others, names)


def _whole(parts: list[Part]) -> Whole:
    dtype, shape = parts[0].dtype, parts[0].shape
    blocks: dict[tuple[tuple[int, ...], tuple[int, ...]], list[Part]] = {}
    for part in parts:
        if math.prod(part.sizes):
            blocks.setdefault((part.offsets, part.sizes), []).append(part)
    copies = [{part.sum for part in held} for held in blocks.values()]
    covered = sum(math.prod(sizes) for _, sizes in blocks) == math.prod(shape)
    if not covered or any(p.shape != shape or p.dtype != dtype for p in parts):
        return Whole(dtype=dtype, shape=shape, sums=frozenset(), casts={})
    if len(copies) == 1:
        return Whole(dtype=dtype, shape=shape, sums=frozenset(copies[0]), casts=next(iter(blocks.values()))[0].casts)
    if any(len(held) > 1 for held in copies):
        return Whole(dtype=dtype, shape=shape, sums=frozenset(), casts={})
    firsts = [held[0] for held in blocks.values()]
    return Whole(
        dtype=dtype,
        shape=shape,
        sums=frozenset({_total(p.sum for p in firsts)}),
        casts={to: _total(p.casts[to] for p in firsts) for to in (firsts[0].casts if firsts else ())},
    )


def _total(sums: Iterable[int]) -> int:
    return sum(sums) & MASK


def differences(
    before: WholeState, after: WholeState, carried: AbstractSet[str] = frozenset()
) -> Iterator[tuple[Group, str, str]]:
    """What `after` lacks of `before` or has otherwise: group, name, and how. What cannot be told is left out.

    `carried`: what holds weights beside those that are stepped, and must have them again.
    """
    for group in GROUPS:
        for name, old in before.tensors[group].items():
            new = after.tensors[group].get(name)
            if not _is_compared(group, name, carried):
                continue
            if new is None:
                if group != "weights beside":  # one may be made late
                    yield group, name, "is missing"
            elif (old.shape, old.dtype) != (new.shape, new.dtype):
                yield group, name, f"is {new.dtype} {list(new.shape)} and was {old.dtype} {list(old.shape)}"
            elif old.sums and new.sums and not old.sums & new.sums:
                yield group, name, "has other values"
    for name, old_value in before.others.items():
        if after.others.get(name) != old_value:
            yield "optimizer state", name, "has another value" if name in after.others else "is missing"
