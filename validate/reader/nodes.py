"""The nodes of a syntax tree, one after the other.

`ast.walk` goes through all that a node has, names, operators and contexts included, and takes several times as long:
trees are looked through often, for what a module shows of itself.
"""

from __future__ import annotations

import ast
import functools

# Fields that never hold a node with anything in it.
_PLAIN = frozenset({
    "arg", "asname", "attr", "conversion", "ctx", "id", "is_async", "kind", "level", "module", "op", "ops", "simple",
    "type_comment", "type_ignores",
})  # fmt: skip


def nodes(tree: ast.AST) -> list[ast.AST]:
    """A node and all below it but for operators and contexts, what lies higher first, as by `ast.walk`."""
    found = [tree]
    for node in found:
        found += inside(node)
    return found


@functools.lru_cache(maxsize=512)  # as many as the trees that are kept
def parents(tree: ast.AST) -> dict[ast.AST, ast.AST]:
    """The node that each one below a tree is right below."""
    return {inner: outer for outer in nodes(tree) for inner in inside(outer)}


def around(outer: ast.AST, inner: ast.AST) -> tuple[list[ast.stmt], list[ast.stmt]]:
    """The statements of the body that a statement is in which run before it, and those that run after it."""
    for name in ("body", "orelse", "finalbody"):
        body = getattr(outer, name, None)
        if isinstance(body, list) and inner in body:
            at = body.index(inner)
            return body[:at], body[at + 1 :]
    return [], []


def is_exit(statement: ast.AST) -> bool:
    """Whether a statement is a call that ends the program: `sys.exit()`."""
    call = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(call, ast.Call) and last_name(call.func) in ("exit", "_exit", "quit")


def inside(node: ast.AST) -> list[ast.AST]:
    """The nodes right below one, but for operators and contexts."""
    found: list[ast.AST] = []
    for name in _fields(type(node)):
        value = getattr(node, name, None)
        if isinstance(value, list):
            found += [part for part in value if isinstance(part, ast.AST)]
        elif isinstance(value, ast.AST):
            found.append(value)
    return found


_KNOWN: dict[type[ast.AST], tuple[str, ...]] = {}


def _fields(cls: type[ast.AST]) -> tuple[str, ...]:
    """The fields of a kind of node that may hold others."""
    if cls not in _KNOWN:
        _KNOWN[cls] = tuple(name for name in cls._fields if name not in _PLAIN)
    return _KNOWN[cls]


def last_name(node: ast.AST) -> str:
    """`save` of `dcp.save` and of `save`; empty for what is neither a name nor an attribute."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
