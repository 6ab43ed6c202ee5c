"""Values that the program has reduced over the ranks in place, such as a loss, and what is scaled from them."""

from __future__ import annotations

import ast

from ...events import Ref
from ..values import Const, External, Obj, Sym, Value, members
from .conditions import cell_of
from .core import Walk
from .parts import part_in, refs


def reduce_in_place(walk: Walk, node: ast.expr, value: Value) -> tuple[Ref, ...]:
    """A collective fills what `node` names: another value from here on. Returns what it was, as events mention it."""
    local = part_in(walk, value)
    cell = cell_of(walk, node)
    if cell is None:
        return refs(local) if local is not None else ()
    made = walk.sym()
    walk.store.set(cell, made)
    walk.store.set((made.key, "%reduced"), Const(made.key))
    return (*(refs(local) if local is not None else ()), Ref(made.key, ast.unparse(node)))


def carry(walk: Walk, op: ast.operator, left: Value, right: Value, made: Sym) -> Sym:
    """What is divided, or multiplied by a constant or the number of ranks, is still what was reduced."""
    origin = None
    if isinstance(op, ast.Div) or (isinstance(op, ast.Mult) and _is_factor(right)):
        origin = _origin(walk, left)
    elif isinstance(op, ast.Mult) and _is_factor(left):
        origin = _origin(walk, right)
    if origin is not None:
        made = walk.sym()
        walk.store.set((made.key, "%reduced"), origin)
    return made


def _is_factor(value: Value) -> bool:
    sizes = External("torch.distributed.get_world_size")
    return isinstance(value, Const) or (isinstance(value, Obj) and value.cls == sizes)


def _origin(walk: Walk, value: Value) -> Const | None:
    for _, v in members(value):
        if isinstance(v, Sym) and isinstance(found := walk.store.get((v.key, "%reduced")), Const):
            return found
    return None


def reduced_before(walk: Walk, value: Value) -> tuple[Ref, ...]:
    """What was reduced that this value is, or was scaled from."""
    origin = _origin(walk, value)
    return (Ref(origin.value, "loss"),) if origin is not None and isinstance(origin.value, int) else ()
