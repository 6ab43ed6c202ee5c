"""Whether a loop can count on from where another run stopped: only if its counter is set to more than constants."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator

from ..nodes import last_name, nodes
from .core import Walk

_AT_ONCE = ("setattr", "vars", "__dict__", "exec")  # set what no assignment names


def counts_anew(walk: Walk, node: ast.For | ast.AsyncFor | ast.While, counter: ast.expr | None) -> bool:
    """Whether a loop counts from a number that is written down, whatever the program has loaded.

    `counter`: what a `while` compares with its end; None for a loop over a range, whose first argument is seen.
    """
    if counter is None:
        return isinstance(node, ast.For | ast.AsyncFor) and _from_a_constant(node.iter)
    if isinstance(counter, ast.Attribute):
        return _only_counted(list(walk.files()), counter.attr, attribute=True)
    if not isinstance(counter, ast.Name):
        return False
    function = walk.frame.function
    shared = any(counter.id in n.names for n in nodes(walk.frame.file.tree) if isinstance(n, ast.Global | ast.Nonlocal))
    within = function.node if function is not None else walk.frame.file.tree
    return not shared and _only_counted([within], counter.id, attribute=False)


def _from_a_constant(over: ast.expr) -> bool:
    """`range(n)`, `range(0, n)`, and either in a progress bar."""
    ranges = [n for n in nodes(over) if isinstance(n, ast.Call) and last_name(n.func) in ("range", "trange")]
    return len(ranges) == 1 and (len(ranges[0].args) == 1 or isinstance(ranges[0].args[0], ast.Constant))


def _only_counted(trees: list[ast.AST], name: str, *, attribute: bool) -> bool:
    """Whether a variable, or an attribute of that name, is set to constants alone, at least once, and counted up."""
    begun = False
    for tree in trees:
        about = _about(tree, name, attribute)
        if about is None:
            return False
        begun = begun or about
    return begun


@functools.lru_cache(maxsize=1024)
def _about(tree: ast.AST, name: str, attribute: bool) -> bool | None:
    """Whether a file sets it to a constant; None where it sets it, or may set it, to something else."""
    begun = False
    if isinstance(tree, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) and name in _parameters(tree.args):
        return None
    every = nodes(tree)
    spread = {id(k.value) for k in every if isinstance(k, ast.keyword) and k.arg is None}  # `f(**vars(x))` only reads
    for node in every:
        if attribute and id(node) not in spread and _sets_at_once(node):
            return None
        if isinstance(node, ast.ClassDef) and attribute and name in _fields(node):
            return None  # it may be given when an instance is made
        for target, value in _assigned(node):
            if not _is(target, name, attribute):
                continue
            if not isinstance(value, ast.Constant):
                return None
            begun = begun or not isinstance(node, ast.AugAssign)
    return begun


def _sets_at_once(node: ast.AST) -> bool:
    return isinstance(node, ast.Call | ast.Attribute) and (
        last_name(node.func if isinstance(node, ast.Call) else node) in _AT_ONCE
    )


def _parameters(spec: ast.arguments) -> list[str]:
    return [a.arg for a in (*spec.posonlyargs, *spec.args, *spec.kwonlyargs, spec.vararg, spec.kwarg) if a is not None]


def _fields(node: ast.ClassDef) -> list[str]:
    return [s.target.id for s in node.body if isinstance(s, ast.AnnAssign) and isinstance(s.target, ast.Name)]


def _is(target: ast.AST, name: str, attribute: bool) -> bool:
    if isinstance(target, ast.Attribute):
        return attribute and target.attr == name
    return isinstance(target, ast.Name) and target.id == name and not attribute


def _assigned(node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST | None]]:
    """What a statement or expression assigns to, each with the value where that shows."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            yield from _pairs(target, node.value)
    elif isinstance(node, ast.AugAssign | ast.AnnAssign | ast.NamedExpr):
        yield node.target, node.value
    elif isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
        yield from _pairs(node.target, None)
    elif isinstance(node, ast.withitem) and node.optional_vars is not None:
        yield from _pairs(node.optional_vars, None)


def _pairs(target: ast.AST, value: ast.AST | None) -> Iterator[tuple[ast.AST, ast.AST | None]]:
    """The parts of a target, each with its part of the value."""
    if not isinstance(target, ast.Tuple | ast.List):
        yield target, value
        return
    values = value.elts if isinstance(value, ast.Tuple | ast.List) and len(value.elts) == len(target.elts) else None
    for position, part in enumerate(target.elts):
        yield from _pairs(part, values[position] if values is not None else None)
