"""Names that a program finds by listing a folder, and whether it looks which of them are whole checkpoints."""

from __future__ import annotations

import ast
import functools
import re

from ..values import Elements, Items, Obj, Sym, Tuple, Value, members
from .core import Walk
from .handlers import catches_failure

_DEPTH_LIMIT = 12
# How programs call what tells a whole checkpoint from one that was not finished, or what they write it under meanwhile.
_MARK = re.compile(
    r"\.metadata\b|^[\w.{}/*-]*(complete|done|success|commit|finish|valid|tmp|temp)[\w.{}/*-]*$", re.IGNORECASE
)
_MOVES = {"rename", "renames", "move", "read_metadata", "replace"}


def listed(walk: Walk, value: object, depth: int = 0) -> bool:
    """Whether a value was made of the entries of a folder."""
    if not walk.lists_folders or depth > _DEPTH_LIMIT or not isinstance(value, Value):
        return False
    for _, v in members(value):
        inner: tuple[object, ...] = ()
        if isinstance(v, Sym):
            inner = walk.parts_of(v.key)
        elif isinstance(v, Tuple):
            inner = v.items
        elif isinstance(v, Obj):
            if walk.fact(v, "listed"):
                return True
            content = walk.content(v)
            if isinstance(content, Elements):
                inner = content.items
            elif isinstance(content, Items):
                inner = tuple(part for pair in content.items for part in pair)
            elif v.parent is not None:
                inner = (v.parent[0],)
        if any(listed(walk, part, depth + 1) for part in inner):
            return True
    return False


def pass_on(walk: Walk, values: list[Value], result: Value) -> Value:
    """What a library makes of the entries of a folder is made of them too."""
    if walk.lists_folders and isinstance(result, Obj) and any(listed(walk, value) for value in values):
        walk.establish(result, "listed")
    return result


def knows_whole(walk: Walk) -> bool:
    """Whether the program may know whole checkpoints from others, or is ready for a load that fails."""
    if walk.seen_whole or any(catches_failure(h) for node in walk.trying for h in node.handlers):
        return True
    trees = {*walk.project.trees(), *(frame.file.tree for frame in walk.frames)}
    return any(_mentions_marks(tree) for tree in trees)


@functools.lru_cache(maxsize=512)
def _mentions_marks(tree: ast.Module) -> bool:
    return any(
        (isinstance(node, ast.Constant) and isinstance(node.value, str) and _MARK.search(node.value) is not None)
        or (isinstance(node, ast.Attribute) and node.attr in _MOVES and _is_of_files(node))
        for node in ast.walk(tree)
    )


def _is_of_files(node: ast.Attribute) -> bool:
    """Whether it moves files: `replace` is a method of strings too."""
    return node.attr != "replace" or (isinstance(node.value, ast.Name) and node.value.id == "os")
