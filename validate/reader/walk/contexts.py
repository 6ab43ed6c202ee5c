"""`with`: what its manager does before and after the body."""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable

from ..values import NONE, Bound, External, Function, Obj, Value, What, members
from .calls import Call, call_value, find_method, invoke
from .conditions import walk_cell
from .core import Walk
from .lookup import attribute


def context_manager(walk: Walk, node: ast.Call) -> Callable[[Callable[[Value], None]], None] | None:
    """How to walk a `with` whose manager is a generator function of the program; None when it is not."""
    if isinstance(node.func, ast.Attribute):
        callee = attribute(walk, walk.evaluate(node.func.value), node.func.attr, node.func, called=True)
    elif isinstance(node.func, ast.Name) and walk_cell(walk, node.func.id) is not None:
        callee = walk.evaluate(node.func)
    else:
        return None
    function = callee.function if isinstance(callee, Bound) else callee
    if not isinstance(function, Function) or function.flavor != "contextmanager":
        return None
    receiver = callee.receiver if isinstance(callee, Bound) else None

    def run(body: Callable[[Value], None]) -> None:
        args = [walk.evaluate(a) for a in node.args if not isinstance(a, ast.Starred)]
        kwargs = {k.arg: walk.evaluate(k.value) for k in node.keywords if k.arg is not None}
        entered: list[bool] = []

        def once(value: Value) -> None:
            if not entered:
                entered.append(True)
                body(value)

        walk.next_yield = once
        invoke(walk, function, Call(walk, node, args, kwargs), receiver)

    return run


def enter_context(walk: Walk, value: Value, node: ast.expr) -> tuple[Value, Callable[[], object]]:
    """What `with value as x` binds, and what to do at its end."""
    for _, manager in members(value):
        if not isinstance(manager, Obj):
            continue
        if manager.what is What.DEVICE or manager.cls == External("accelerate.init_empty_weights"):
            meta = True if manager.what is not What.DEVICE else None if manager.data is None else manager.data == "meta"
            walk.meta.append(meta)
            return value, walk.leave_device
        enter, leave = find_method(walk, manager, "__enter__"), find_method(walk, manager, "__exit__")
        if enter is not None and leave is not None:
            entered = call_value(walk, enter, Call(walk, node, [], {}))
            return entered, functools.partial(call_value, walk, leave, Call(walk, node, [NONE, NONE, NONE], {}))
    return value, lambda: None
