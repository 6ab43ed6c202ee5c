"""Values that a load fills into a dictionary: which variables they were put in from, and who reads which of the two.

A dictionary `{"step": step}` keeps the number, not the variable: after a load it has the checkpoint's, and the variable
has what it had.
"""

from __future__ import annotations

import ast

from ...events import LoadedValueRead
from ..store import Cell
from ..values import Const, Obj, Value
from .conditions import walk_cell
from .core import Walk


def put(walk: Walk, target: Obj, key: object, node: ast.expr) -> None:
    """The value of `node` is put into a dictionary under `key`."""
    cell = _cell(walk, node)
    if cell is not None and isinstance(key, str):
        walk.put_from.setdefault(target.id, {})[key] = cell


def _cell(walk: Walk, node: ast.expr) -> Cell | None:
    """The variable or attribute that an expression is."""
    if isinstance(node, ast.Name):
        return walk_cell(walk, node.id)
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        cell = walk_cell(walk, node.value.id)
        outer = walk.get(cell) if cell is not None else None
        return (outer.id, "." + node.attr) if isinstance(outer, Obj) else None
    return None


def load(walk: Walk, target: Obj, key: Value, value: Value) -> None:
    """A load puts another value in the place of this one."""
    name = key.value if isinstance(key, Const) else None
    cell = walk.put_from.get(target.id, {}).get(name) if isinstance(name, str) else None
    if cell is None or not isinstance(name, str) or walk.store.get(cell) != value:
        return
    if isinstance(value, Const) and isinstance(value.value, int | float) and not isinstance(value.value, bool):
        walk.outdated[cell] = (target, name, value)


def read(walk: Walk, target: Value, key: Value | None, node: ast.AST) -> None:
    """The value of a key, or of any, is read from a dictionary."""
    if walk.outdated and isinstance(target, Obj) and any(filled == target for filled, _, _ in walk.outdated.values()):
        name = key.value if isinstance(key, Const) and isinstance(key.value, str) else None
        walk.emit(LoadedValueRead, node, state=walk.ref(target), key=name)


def variable_read(walk: Walk, cell: Cell, node: ast.AST) -> None:
    """A variable is read from which a value had been put into a dictionary that was filled since."""
    target, key, value = walk.outdated[cell]
    if walk.store.get(cell) == value and isinstance(node, ast.expr):
        name = ast.unparse(node)
        walk.emit(LoadedValueRead, node, state=walk.ref(target), key=key, stale=True, name=name)
