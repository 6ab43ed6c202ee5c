"""What a program makes when it first needs it: `if group is None: group = new_group()` makes one and no second.

What such a piece makes is no `None`, also where the reader does not know what it is, or where a rank has left it out:
the next to come there finds it made.
"""

from __future__ import annotations

import ast
import functools
from typing import TYPE_CHECKING

from ..nodes import nodes
from ..values import NONE, Const, Obj, Sym, Value, members, union

if TYPE_CHECKING:
    from .core import Walk

_MADE = "%made"


def set_elsewhere(walk: Walk, scope: int, name: str) -> bool:
    """Whether a variable of a module is None just until one of its functions gives it something.

    A function that asks what it holds is not meant: it may be the one that does.
    """
    function = walk.frame.function
    if function is None or walk.scopes[scope] is not None:
        return False
    return name in _given_by_functions(walk.frame.file.tree) and name not in _asked_for(function.node)


@functools.lru_cache(maxsize=512)
def _given_by_functions(tree: ast.Module) -> frozenset[str]:
    return frozenset(name for part in nodes(tree) if isinstance(part, ast.Global) for name in part.names)


@functools.lru_cache(maxsize=4096)
def _asked_for(function: ast.AST) -> frozenset[str]:
    tests = (part.test for part in nodes(function) if isinstance(part, ast.If | ast.IfExp | ast.While))
    return frozenset(part.id for test in tests for part in nodes(test) if isinstance(part, ast.Name))


@functools.lru_cache(maxsize=4096)
def lazily(node: ast.If) -> ast.Name | ast.Attribute | None:
    """The variable or attribute that is asked whether it is None, and given something where it is."""
    asked = node.test
    if not (isinstance(asked, ast.Compare) and len(asked.ops) == 1 and isinstance(asked.ops[0], ast.Is)):
        return None
    held, other = asked.left, asked.comparators[0]
    if not (isinstance(held, ast.Name | ast.Attribute) and isinstance(other, ast.Constant) and other.value is None):
        return None
    name = ast.unparse(held)
    given = (
        target
        for statement in node.body
        for part in nodes(statement)
        if isinstance(part, ast.Assign)
        for target in part.targets
    )
    return held if any(ast.unparse(target) == name for target in given) else None


def settle(walk: Walk, value: Value) -> Value:
    """What a variable holds when this was done: any of its values but `None`, of which later questions know."""
    kept = [(path, v) for path, v in members(value) if v != NONE]
    for _, v in kept:
        if isinstance(v, Sym | Obj):
            walk.store.set((v.key if isinstance(v, Sym) else v.id, _MADE), Const(True))
    return union(kept) if kept else value


def is_made(walk: Walk, value: Sym | Obj) -> bool:
    """Whether an unknown value was made in this way."""
    return walk.store.get((value.key if isinstance(value, Sym) else value.id, _MADE)) is not None
