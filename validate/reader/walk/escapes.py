"""What goes where the walk cannot follow: into library code, to an unknown caller, into an unknown object."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from ..values import Bound, Elements, Items, Obj, Tensors, Tuple, Union, Value, What, members
from .core import Walk

if TYPE_CHECKING:
    from .calls import Call


_HOLD = (Obj, Union, Tuple, Bound, Tensors)  # what is an object, or may have one in it


def escape(call: Call, values: list[Value]) -> None:
    """These values go where the walk cannot follow, with all that they hold."""
    for value in values:
        if isinstance(value, _HOLD):
            escape_one(call.walk, call.node, value)


def escape_one(walk: Walk, node: ast.AST, value: Value) -> None:
    """This value, with all that it holds, goes out of sight at `node`."""
    seen: set[int] = set()
    todo = [(value, 0)]
    while todo:
        current, depth = todo.pop()
        for _, v in members(current):
            if isinstance(v, Tuple):
                todo += [(item, depth + 1) for item in v.items if isinstance(item, _HOLD)]
            elif isinstance(v, Bound):
                todo.append((v.receiver, depth + 1))
            elif isinstance(v, Tensors):
                todo += [(owner, depth + 1) for owner in v.of]
            elif isinstance(v, Obj) and v.id not in seen and depth < 4:
                seen.add(v.id)
                walk.escape(node, v)
                if walk.what(v) is What.MODULE:
                    walk.establish(v, "elsewhere")
                    continue
                content = walk.content(v)
                if isinstance(content, Elements):
                    todo += [(item, depth + 1) for item in content.items if isinstance(item, _HOLD)]
                elif isinstance(content, Items):
                    todo += [(item, depth + 1) for _, item in content.items if isinstance(item, _HOLD)]
                elif v.what is What.RESPONSE:
                    futures = (walk.store.get((v.id, name)) for name in ("%upload", "%staging"))
                    todo += [(future, depth + 1) for future in futures if future is not None]
                elif v.what is What.INSTANCE:
                    todo += [(item, depth + 1) for item in attributes(walk, v)]


def attributes(walk: Walk, obj: Obj) -> list[Value]:
    """The values of all attributes that were stored in an object."""
    return [value for name in walk.store.names(obj.id) if name.startswith(".") and (value := walk.get((obj.id, name)))]
