"""Loops that train: where they count from, as far as that shows."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from contextlib import contextmanager

from ...events import Stepped, TrainingLoop
from ..nodes import inside, nodes
from ..values import Const, External, Obj, Value, What
from .core import Walk
from .counters import counts_anew

_LEAVING = (ast.Break, ast.Return, ast.Raise)
_ORDERS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
_MEASURES = re.compile(r"loss|acc|score|metric|ppl|perplexity|best", re.IGNORECASE)  # how well, not how far
_COUNTERS = re.compile(r"step|epoch|iter|batch|count|number|seen|start", re.IGNORECASE)
_SHOWING = ("tqdm.tqdm", "tqdm.auto.tqdm", "tqdm.trange", "tqdm.auto.trange")


@contextmanager
def training_loop(walk: Walk, node: ast.For | ast.AsyncFor | ast.While, *, repeats: bool) -> Iterator[None]:
    """Tell of a loop that lies in no other one when it is over, if an optimizer was stepped in it."""
    if not repeats or walk.loops:
        yield
        return
    start = None if may_pass_over(node) else _start(walk, node)
    anew = start is not None and _anew(walk, node)
    since, path = walk.seen, walk.path
    try:
        yield
    finally:
        if walk.happened(Stepped, since):
            with walk.restored("path", path):
                walk.emit(TrainingLoop, node, since=since, start=start, anew=anew, counter=_counter(node))


def _start(walk: Walk, node: ast.For | ast.AsyncFor | ast.While) -> int | None:
    """What the loop counts from, where it counts up to an end that was not reckoned from where training stopped."""
    if isinstance(node, ast.While):
        test = _comparison(node)
        if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Lt | ast.LtE):
            return _constant(walk, test.left) if _is_given(walk, test.comparators[0]) else None
        return None
    if not (isinstance(node.target, ast.Name) and not node.target.id.startswith("_")):
        return None
    given = node.iter
    if isinstance(given, ast.Call) and given.args and _is_called(walk, given, *_SHOWING[:2]):
        given = given.args[0]
    if not isinstance(given, ast.Call) or any(isinstance(a, ast.Starred) for a in given.args):
        return None
    if not _is_called(walk, given, "builtins.range", *_SHOWING[2:]):
        return None
    end = given.args[0] if len(given.args) == 1 else given.args[1] if len(given.args) > 1 else None
    if end is None or not _is_given(walk, end):
        return None
    return 0 if len(given.args) == 1 else _constant(walk, given.args[0])


def _comparison(node: ast.While) -> ast.expr:
    """What a loop compares as long as it goes on; what else it asks besides can only end it sooner."""
    is_and = isinstance(node.test, ast.BoolOp) and isinstance(node.test.op, ast.And)
    tests = node.test.values if isinstance(node.test, ast.BoolOp) and is_and else [node.test]
    return next((test for test in tests if isinstance(test, ast.Compare)), node.test)


def _anew(walk: Walk, node: ast.For | ast.AsyncFor | ast.While) -> bool:
    test = _comparison(node) if isinstance(node, ast.While) else None
    return counts_anew(walk, node, test.left if isinstance(test, ast.Compare) else None)


def _counter(node: ast.For | ast.AsyncFor | ast.While) -> str | None:
    test = _comparison(node) if isinstance(node, ast.While) else None
    return test.left.attr if isinstance(test, ast.Compare) and isinstance(test.left, ast.Attribute) else None


def _is_called(walk: Walk, call: ast.Call, *names: str) -> bool:
    if not isinstance(call.func, ast.Name | ast.Attribute):
        return False
    value = walk.evaluate(call.func)
    return isinstance(value, External) and value.name in names


def _constant(walk: Walk, node: ast.expr) -> int | None:
    value = _value(walk, node)
    return value.value if isinstance(value, Const) and type(value.value) is int else None


def _is_given(walk: Walk, node: ast.expr) -> bool:
    """Whether a number is a constant, or a setting that was never reckoned with."""
    value = _value(walk, node)
    if isinstance(value, Const):
        return True
    return isinstance(value, Obj) and value.what is What.OPAQUE and value.cls is None


def _value(walk: Walk, node: ast.expr) -> Value | None:
    """The value of a name, an attribute, a constant, or of what is reckoned from them; None of what may do more."""
    harmless = ast.Name | ast.Attribute | ast.Constant | ast.expr_context | ast.BinOp | ast.operator
    return walk.evaluate(node) if all(isinstance(part, harmless) for part in ast.walk(node)) else None


@functools.lru_cache(maxsize=4096)
def may_pass_over(loop: ast.For | ast.AsyncFor | ast.While) -> bool:
    """Whether the body can leave out what was done before: it skips, or compares with what it does not count to."""
    for part in _inside(loop):
        if isinstance(part, ast.Continue):
            return True
        leaves = isinstance(part, ast.If) and isinstance(part.body[-1], _LEAVING)
        if isinstance(part, ast.If) and not leaves and any(map(_orders_names, nodes(part.test))):
            return True
    return False


@functools.lru_cache(maxsize=4096)
def draws_and_skips(loop: ast.For | ast.AsyncFor | ast.While) -> bool:
    """Whether the body takes what is `next`, and goes on to another round while it is behind what was done before."""
    draws = skips = False
    for part in _inside(loop):
        draws = draws or (isinstance(part, ast.Call) and isinstance(part.func, ast.Name) and part.func.id == "next")
        if isinstance(part, ast.If) and isinstance(part.body[-1], ast.Continue):
            skips = skips or any(map(_orders_names, nodes(part.test)))
    return draws and skips


def _orders_names(node: ast.AST) -> bool:
    if not (isinstance(node, ast.Compare) and isinstance(node.ops[0], _ORDERS)):
        return False
    sides = (node.left, node.comparators[0])
    if all(_MEASURES.search(text) and not _COUNTERS.search(text) for text in map(ast.unparse, sides)):
        return False
    return not any(isinstance(side, ast.Constant) for side in sides)


def _inside(node: ast.AST) -> Iterator[ast.AST]:
    """All that is in a node, but for the functions that it defines."""
    for part in inside(node):
        if not isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            yield part
            yield from _inside(part)
