"""Whose files a program loads: its own, or those of others."""

from __future__ import annotations

import ast
import functools

from ..nodes import nodes
from ..values import External, Obj
from ..walk.calls import Call

_OF_DCP = ("dcp", "cp", "checkpoint")  # what programs import torch.distributed.checkpoint as


def foreign(call: Call) -> bool | None:
    """Whether no file of the whole program saves anything as `torch.load` reads it."""
    walk = call.walk
    if not walk.in_entry:
        return None  # the function that saves may be next to the one that loads
    source = call.get(0, "f")
    if isinstance(source, Obj) and isinstance(source.cls, External) and source.cls.name == "io.BytesIO":
        return None
    trees = {*walk.project.trees(), *(frame.file.tree for frame in walk.frames)}
    return True if not any(map(_writes, trees)) else None


@functools.lru_cache(maxsize=512)
def _writes(tree: ast.Module) -> bool:
    calls = (node.func for node in nodes(tree) if isinstance(node, ast.Call))
    return any(
        (isinstance(f, ast.Attribute) and f.attr == "save" and not ast.unparse(f.value).lower().endswith(_OF_DCP))
        or (isinstance(f, ast.Name) and "save" in f.id)
        for f in calls
    )
