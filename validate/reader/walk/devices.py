"""Whether a program speaks anywhere of choosing an accelerator, also where the walk has not come."""

from __future__ import annotations

import ast
import functools
from typing import TYPE_CHECKING

from ...events import DeviceSet
from ..nodes import nodes
from ..values import Path

if TYPE_CHECKING:
    from .core import Walk

_SETS = {"set_device", "set_device_index"}
_LOCAL = ("LOCAL_RANK", "LOCAL_WORLD_SIZE")
_HIDES = {"CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"}


def chosen_out_of_sight(walk: Walk, path: Path) -> bool:
    """Whether the program may choose where the walk has not come, and was not seen to on the way to a group, or later.

    One of its files has such a call, or says how many processes a machine must have, or it uses modules of its project
    that are not followed wherever they lead. A function that is read alone may be called by those who have.
    """
    if not walk.in_entry:
        return True
    if any(set(path).issuperset(other) for _, other in walk.events_on(DeviceSet, 0)):
        return False
    return walk.project.goes_far or any(map(_speaks_of_it, walk.files()))


@functools.lru_cache(maxsize=512)
def _speaks_of_it(tree: ast.Module) -> bool:
    return any(
        (isinstance(node, ast.Attribute) and node.attr in _SETS)
        or (isinstance(node, ast.alias) and node.name in _SETS)
        or (isinstance(node, ast.Constant) and node.value in _HIDES)
        or (isinstance(node, ast.Assert) and _speaks_of_machine(node.test))
        for node in nodes(tree)
    )


def _speaks_of_machine(test: ast.expr) -> bool:
    return any(isinstance(node, ast.Constant) and node.value in _LOCAL for node in nodes(test))
