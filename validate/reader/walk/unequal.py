"""Parts of the data, one a rank, that need not be of one length, and loops through them.

Of `data[rank::world_size]` some ranks have an element more, unless the number of all is a multiple of that of ranks. A
program that sees to that shows it by reckoning with the number of ranks, or by agreeing with them on a length.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ...events import ForwardEntered, RoundsDiffer
from ..nodes import inside, last_name, nodes
from ..values import NONE, Const, External, Obj, Sym, Value, What, identity, members, ranked
from .core import Walk

_RANKS = re.compile(r"world|replica|ranks|\bws\b|dp_|_dp|num_proc|num_shards|gpus|\bsize\b", re.IGNORECASE)
_BATCH = re.compile(r"batch|accum", re.IGNORECASE)
# What shows that a program sees to equal lengths, or that it does not go by them.
_AGREES = {"MIN", "MAX", "Join", "cycle"}
_MADE_UP = {
    f"torch.{name}" for name in ("randn", "rand", "arange", "randint", "zeros", "ones", "full", "linspace", "tensor")
}


def part(walk: Walk, value: Value, bounds: Sequence[Value]) -> Value:
    """`value[rank::world_size]`: what this rank takes of something whose length is not known."""
    if not _unequal(walk, bounds) or is_sized(walk, value):
        return value
    if isinstance(value, Obj) and walk.what(value) is What.OPAQUE:
        value = walk.unknown(value.cls)
    elif isinstance(value, Sym):
        value = walk.sym()
    return mark(walk, value)


def is_sized(walk: Walk, value: Value) -> bool:
    """Whether a value was made up, and with it how many elements it has, or is their number."""
    if isinstance(value, Sym):
        return walk.store.get((value.key, "%sized")) is not None
    if not isinstance(value, Obj):
        return isinstance(value, Const)
    return walk.fact(value, "random") or (isinstance(value.cls, External) and value.cls.name in _MADE_UP)


def counted(walk: Walk, number: Sym, value: Value) -> None:
    """How many elements a value has."""
    if is_sized(walk, value):
        walk.store.set((number.key, "%sized"), Const(True))
    follow(walk, number, value)


def mark(walk: Walk, value: Value) -> Value:
    """A value is such a part, or goes through one."""
    if isinstance(value, Obj | Sym):
        walk.store.set((identity(value), "%unequal"), Const(True))
    return value


def is_part(walk: Walk, value: Value | None) -> bool:
    """Whether a value is such a part, whichever of several it is."""
    single = [v for _, v in members(value)] if value is not None else []
    return bool(single) and all(
        isinstance(v, Obj | Sym) and walk.store.get((identity(v), "%unequal")) is not None for v in single
    )


def follow(walk: Walk, made: Value, *of: Value | None) -> Value:
    """What is made element by element of such a part is one."""
    return mark(walk, made) if any(is_part(walk, value) for value in of) else made


def _unequal(walk: Walk, bounds: Sequence[Value]) -> bool:
    """Whether a slice or a range from the first bound to the second, each so many, may be longer on some ranks."""
    start, end, step = bounds
    if not ranked(start):
        return False
    if step not in (NONE, Const(1)):
        return end == NONE or (not is_sized(walk, end) and not ranked(end))
    return ranked(end) and _rounded_up(walk, end, 4)


def _rounded_up(walk: Walk, value: object, depth: int) -> bool:
    """Whether the last part is cut off: it ends where the data does, or parts are as many as were rounded up to."""
    if isinstance(value, Obj):
        return value.cls == External("math.ceil")
    parts = walk.parts_of(value.key) if isinstance(value, Sym) and depth else ()
    return parts[:2] == ("convert", "min") or any(_rounded_up(walk, v, depth - 1) for v in parts)


@contextmanager
def going_round(walk: Walk, node: ast.For | ast.AsyncFor, over: Value) -> Iterator[None]:
    """Tell of a loop over such a part when it is over, if a sharded model is called in it."""
    since, path = walk.seen, walk.path
    yield
    if not (is_part(walk, over) or walk.turns) or _is_left(node):
        return
    forwards = [(e, p) for e, p in walk.events_on(ForwardEntered, since) if e.sharded]
    by_turns = any(step.condition in walk.turns for _, p in forwards for step in p[len(path) :])
    if forwards and (is_part(walk, over) or by_turns) and not any(map(_sees_to_it, walk.files())):
        with walk.restored("path", path):
            walk.emit(RoundsDiffer, node, since=since)


@functools.lru_cache(maxsize=4096)
def _is_left(loop: ast.For | ast.AsyncFor) -> bool:
    """Whether the body can leave the loop before its end."""
    todo: list[tuple[ast.AST, bool]] = [(statement, True) for statement in loop.body]
    while todo:
        node, own = todo.pop()
        if isinstance(node, ast.Return | ast.Yield | ast.YieldFrom) or (own and isinstance(node, ast.Break)):
            return True
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            nested = isinstance(node, ast.For | ast.AsyncFor | ast.While)
            todo += [(part, own and not nested) for part in inside(node)]
    return False


@functools.lru_cache(maxsize=512)
def _products(tree: ast.Module) -> frozenset[str]:
    """The products that a file writes: `len(batches) // ranks * ranks` is a multiple of the number of ranks."""
    return frozenset(ast.unparse(n) for n in nodes(tree) if isinstance(n, ast.BinOp) and isinstance(n.op, ast.Mult))


@functools.lru_cache(maxsize=512)
def _sees_to_it(tree: ast.Module) -> bool:
    """Whether a file may make parts equal: it reckons with the number of ranks, or agrees with them on a length."""
    turns = {
        id(side)
        for node in nodes(tree)
        if isinstance(node, ast.Compare) and "rank" in ast.unparse(node)
        for side in (node.left, *node.comparators)
    }
    for node in nodes(tree):
        if isinstance(node, ast.BinOp | ast.AugAssign) and isinstance(node.op, ast.Mod | ast.FloorDiv):
            by = node.right if isinstance(node, ast.BinOp) else node.value
            whole = node.left if isinstance(node, ast.BinOp) else node.target
            if _RANKS.search(ast.unparse(by)) and not _BATCH.search(ast.unparse(whole)) and id(node) not in turns:
                return True
            if _RANKS.search(ast.unparse(by)) and f"{ast.unparse(node)} * {ast.unparse(by)}" in _products(tree):
                return True
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub):
            padded = node.left if isinstance(node.left, ast.BinOp) and isinstance(node.left.op, ast.Mult) else None
            if padded is not None and "len(" in ast.unparse(node.right) and _RANKS.search(ast.unparse(padded)):
                return True
        elif last_name(node) in _AGREES or (
            isinstance(node, ast.Call)
            and last_name(node.func).startswith("all_gather")
            and any("len(" in ast.unparse(arg) for arg in node.args)
        ):
            return True
    return False
