"""Means over the elements that a mask leaves, of which each rank counts its own.

A sum over all elements, divided by how many the mask leaves, is such a mean, and so is what is made of one by factors
that are the same on all ranks. What was counted on all ranks together is another value by then (`reduced.py`).
"""

from __future__ import annotations

import ast
import functools
import re

from ..nodes import nodes
from ..values import Const, Obj, Sym, Value, identity, members, ranked
from .core import Walk

# How programs write what leaves some elements out, and what is known of all ranks already.
_MASK = re.compile(r"mask|valid|non_?pad|not_pad|!=|\.ne\(", re.IGNORECASE)
_SHARE = re.compile(r"mask(ing)?_ratio|len_keep|num_mask", re.IGNORECASE)
_TOGETHER = re.compile(r"total|global|gather|world|reduce|all_ranks", re.IGNORECASE)
# How programs call numbers by which a loss may be multiplied, or divided, on all ranks alike; and what they count.
_FACTOR = re.compile(r"accum|micro|world_?size|num_replicas|dp_size", re.IGNORECASE)
_COUNTED = re.compile(r"tok|count|items|sampl|valid|mask", re.IGNORECASE)
# Operations that leave a number what it counts.
_SAME = {"item", "clamp", "clamp_min", "clip", "float", "long", "int", "double", "to", "type", "detach", "cpu"}


def summed(walk: Walk, value: Value, written: str) -> Sym:
    """The sum of all elements of a tensor, which the program writes so."""
    made = walk.sym("method", "sum", value, rank=ranked(value))
    if _MASK.search(written) and not _TOGETHER.search(written) and not any(map(_masks_as_many, walk.files())):
        walk.store.set((made.key, "%count"), Const(True))
    return made


@functools.lru_cache(maxsize=512)
def _masks_as_many(tree: ast.Module) -> bool:
    """Whether a file speaks of a share of each sample that is masked: it leaves as many on all ranks."""
    names = (node.id if isinstance(node, ast.Name) else getattr(node, "arg", None) for node in nodes(tree))
    return any(isinstance(name, str) and _SHARE.search(name) for name in names)


def averaged(walk: Walk, value: Value, node: ast.expr) -> None:
    """`losses[mask].mean()`: of what a mask leaves."""
    chosen = node.slice if isinstance(node, ast.Subscript) else None
    if isinstance(chosen, ast.Compare | ast.Name | ast.Attribute | ast.Call) and _MASK.search(ast.unparse(chosen)):
        establish(walk, value)


def carry(
    walk: Walk, op: ast.operator, sides: tuple[ast.expr, ast.expr], left: Value, right: Value, made: Value
) -> None:
    """What an operation makes of such a mean, or of a sum and a count."""
    if not isinstance(op, ast.Mult | ast.Div) or not isinstance(made, Sym | Obj):
        return
    divides = isinstance(op, ast.Div)
    mean = divides and _is_sum(walk, left) and _is_count(walk, right)
    mean = mean or (is_masked(walk, left) and _is_factor(right, sides[1]))
    if mean or (not divides and is_masked(walk, right) and _is_factor(left, sides[0])):
        establish(walk, made)


def establish(walk: Walk, mean: Value) -> None:
    """A value is such a mean."""
    for key in _identities(mean):
        walk.store.set((key, "%masked"), Const(True))


def is_masked(walk: Walk, value: Value) -> bool:
    """Whether a value is such a mean, whichever of several it is."""
    found = _identities(value)
    return bool(found) and all(
        walk.store.get((i, "%masked")) is not None and walk.store.get((i, "%scaled")) is None for i in found
    )


def _identities(value: Value) -> list[int]:
    """Of all that a value may be; none where one of these has no identity."""
    single = [v for _, v in members(value)]
    found = [identity(v) for v in single if isinstance(v, Obj | Sym)]
    return found if len(found) == len(single) else []


def _is_sum(walk: Walk, value: Value) -> bool:
    if isinstance(value, Sym):
        return walk.parts_of(value.key)[:2] == ("method", "sum")
    return isinstance(value, Obj) and walk.fact(value, "sum")


def _is_count(walk: Walk, value: Value) -> bool:
    if not isinstance(value, Sym):
        return False
    if walk.store.get((value.key, "%count")) is not None:
        return True
    match walk.parts_of(value.key):
        case ("method", str(name), Value() as counted, *_) if name in _SAME:
            return _is_count(walk, counted)
        case ("convert", "max" | "int" | "float", *given) | ("op", "Add", *given):
            others = [v for v in given if isinstance(v, Value) and not isinstance(v, Const)]
            return len(others) == 1 and _is_count(walk, others[0])
    return False


def _is_factor(value: Value, node: ast.expr) -> bool:
    """Whether a number is the same on all ranks, as far as its value or its name tells."""
    if isinstance(value, Const):
        return True
    written = ast.unparse(node)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "len":
        return not _COUNTED.search(written)
    return bool(_FACTOR.search(written)) and not _COUNTED.search(written)
