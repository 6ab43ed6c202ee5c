"""Numbers that are made of one rank's part of sharded tensors: where they come from, and what becomes of them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ...events import Escaped, Form, GradientsScaled, PartialRead, Ref
from ..values import Const, Obj, Part, Tensors, Tuple, Value, members
from .core import Walk, parts

if TYPE_CHECKING:
    from .calls import Call

_LOGS = re.compile(r"log|print|add_|write|info|debug|warn|append|update|metric|record|format|set_", re.IGNORECASE)


def part_in(walk: Walk, *values: Value) -> Part | None:
    """The plain number of this rank's part that these values hold or are made of, of all such numbers in them."""
    if not walk.has_parts:  # there is nothing to look for, and this is asked of every call
        return None
    found = [p for p in _all(walk, values, 0) if not p.pending]
    return Part(tuple(dict.fromkeys(i for p in found for i in p.of)), pending=False) if found else None


def _all(walk: Walk, values: Iterable[Value], depth: int) -> list[Part]:
    found: list[Part] = []
    for value in values:
        for _, v in members(value):
            if isinstance(v, Part):
                found.append(v)
            elif depth < 3 and isinstance(v, Tuple):
                found += _all(walk, v.items, depth + 1)
            elif depth < 3 and isinstance(v, Obj):
                found += _all(walk, parts(walk, v), depth + 1)
    return found


def reduced_part(walk: Walk, value: Value, how: str) -> Part | None:
    """`norm` or another reduction of all elements of a sharded tensor."""
    if not isinstance(value, Tensors) or value.form not in (Form.SHARDED, Form.LOCAL):
        return None
    walk.has_parts = True
    return Part((walk.fresh(),), pending=value.form is Form.SHARDED, adds=how == "sum")


def read_part(walk: Walk, part: Part, node: ast.AST, receiver: ast.AST) -> Part:
    """A pending number is read as a plain one."""
    for identity in part.of:
        walk.emit(PartialRead, node, value=Ref(identity, ast.unparse(receiver)))
    return Part(part.of, pending=False)


def operated(walk: Walk, op: ast.operator, left: Value, right: Value) -> Value | None:
    """A binary operation with such a number; None where there is none."""
    if (local := part_in(walk, left, right)) is not None:
        return local
    pending = [v for side in (left, right) for _, v in members(side) if isinstance(v, Part)]
    if not pending:
        return None
    others = [v for side in (left, right) for _, v in members(side) if not isinstance(v, Part)]
    adds = isinstance(op, ast.Add) and all(isinstance(v, Const) for v in others)
    if adds and all(p.adds for p in pending):
        return Part(tuple(i for p in pending for i in p.of), pending=True, adds=True)
    return walk.sym()


def scaled(walk: Walk, tensors: Value, by: Value, node: ast.AST) -> None:
    """Gradients, or other tensors of a module, are multiplied."""
    local = part_in(walk, by)
    if local is not None and any(isinstance(v, Tensors) for v in _flat(walk, tensors)):
        walk.emit(GradientsScaled, node, by=refs(local))


def _flat(walk: Walk, value: Value) -> list[Value]:
    found: list[Value] = []
    for _, v in members(value):
        found += parts(walk, v) if isinstance(v, Obj) else [v]
    return [m for v in found for _, m in members(v)]


def refs(part: Part) -> tuple[Ref, ...]:
    """Its numbers, as events mention them."""
    return tuple(Ref(identity, "number") for identity in part.of)


def handed_on(call: Call, name: str) -> None:
    """Something without source is given such a number: it may reduce it, unless it only logs."""
    walk = call.walk
    if not walk.has_parts or _LOGS.search(name) or (local := part_in(walk, *call.everything())) is None:
        return
    for ref in refs(local):
        walk.emit(Escaped, call.node, of=ref)
