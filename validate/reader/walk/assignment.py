"""Assignment: to variables, attributes and elements, one by one or unpacked."""

from __future__ import annotations

import ast

from ...events import EpochSet, ParametersExchanged
from ..values import (
    Class,
    Const,
    Elements,
    External,
    Items,
    Obj,
    Tensors,
    Tuple,
    Union,
    Value,
    What,
    members,
    single,
    union,
)
from . import contents, dtypes, ties
from .calls import Call, call_value, find_method
from .core import Walk
from .escapes import escape_one
from .loops import Iteration
from .structure import attach

_SAMPLER = External("torch.utils.data.DistributedSampler")
_CONTAINER_LIMIT = 24  # elements that are kept of a list that grows


def assign(walk: Walk, target: ast.expr, value: Value) -> None:
    """Bind a value to a target."""
    if isinstance(target, ast.Name):
        scope = walk.frame.outer_names.get(target.id, walk.frame.scope)
        walk.store.set((scope, target.id), value)
        walk.label(value, target.id)
    elif isinstance(target, ast.Attribute):
        set_attribute(walk, walk.evaluate(target.value), target.attr, value, target)
    elif isinstance(target, ast.Subscript):
        key = walk.evaluate(target.slice) if not isinstance(target.slice, ast.Slice) else walk.sym()
        receivers = [outer for _, outer in members(walk.evaluate(target.value))]
        for outer in receivers:
            set_item(walk, outer, key, _of_receiver(walk, outer, receivers, value), target)
    elif isinstance(target, ast.Tuple | ast.List):
        _unpack(walk, target.elts, value)
    elif isinstance(target, ast.Starred):
        assign(walk, target.value, value)


def _of_receiver(walk: Walk, outer: Value, receivers: list[Value], value: Value) -> Value:
    """What of a value goes into one of several receivers: a module that one of them has goes back to where it was."""
    if len(receivers) == 1 or not isinstance(value, Union):
        return value
    holders = [receiver for receiver in receivers if isinstance(receiver, Obj)]
    kept = [
        (path, v)
        for path, v in value.members
        if not isinstance(v, Obj) or outer in (held := [h for h in holders if walk.holds(h, v.id)]) or not held
    ]
    return union(kept) if kept else value


def _unpack(walk: Walk, targets: list[ast.expr], value: Value) -> None:
    if isinstance(value, Obj) and (content := walk.elements(value)) is not None and content.exact:
        value = Tuple(content.items)
    if isinstance(value, Union):
        tuples = [(path, v) for path, v in value.members if isinstance(v, Tuple) and len(v.items) == len(targets)]
        if tuples:
            for position, target in enumerate(targets):
                assign(walk, target, union([(path, v.items[position]) for path, v in tuples]))
            return
    if (
        isinstance(value, Tuple)
        and len(value.items) == len(targets)
        and not any(isinstance(t, ast.Starred) for t in targets)
    ):
        for target, element in zip(targets, value.items, strict=True):
            assign(walk, target, element)
        return
    from .expressions import item

    for position, target in enumerate(targets):
        if isinstance(value, Tuple):
            assign(
                walk,
                target,
                walk.new_list(value.items, exact=False) if isinstance(target, ast.Starred) else walk.unknown(),
            )
        elif isinstance(value, Obj) and value.what is What.OPAQUE and not isinstance(target, ast.Starred):
            made = walk.unknown()
            walk.store.set((value.id, f"[{position}]"), made)
            assign(walk, target, made)
        else:
            assign(walk, target, item(walk, value, Const(position), target))


def set_attribute(walk: Walk, receiver: Value, name: str, value: Value, node: ast.AST) -> None:
    """`receiver.name = value`."""
    owners_ = members(receiver)
    for path, outer in owners_:
        if isinstance(outer, Class):
            walk.store.set((outer.scope, name), value)
        if not isinstance(outer, Obj):
            continue
        before = walk.store.get((outer.id, "." + name))
        new = value if len(owners_) == 1 or before is None else union([(path, value), ((), before)])
        walk.store.set((outer.id, "." + name), new)
        if name == "requires_grad" and isinstance(value, Const) and value.value is False:
            walk.establish(outer, "frozen")
        if name == "epoch" and outer.cls == _SAMPLER:
            walk.emit(EpochSet, node, of=walk.ref(outer))
        if walk.what(outer) is What.SCHEDULER and outer != walk.frame.receiver:
            walk.escape(node, outer)  # the program sets its count, or replaces what it does
        is_module = walk.what(outer) is What.MODULE
        if is_module:
            attach(walk, node, outer, value)
        if is_module or outer.what is What.OPAQUE:
            walk.hold(outer, value)
        contents.assigned(walk, outer, name, value)
        ties.replaced(walk, before, value, node)
        ties.assigned(walk, outer, name, value, node)
        if is_module:
            attached = [v for _, v in members(value) if isinstance(v, Obj)]
            names = walk.store.get((outer.id, "%children"))
            known = names.items if isinstance(names, Elements) else ()
            if attached and Const(name) not in known:
                walk.store.set((outer.id, "%children"), Elements((*known, Const(name)), exact=True))
            walk.label(value, "." + name, outer)
        else:
            walk.label(value, ast.unparse(node) if isinstance(node, ast.Attribute) else name)
        if outer.what is What.OPAQUE and walk.what(outer) is What.OPAQUE:
            escape_one(walk, node, value)
    if isinstance(receiver, Tensors) and name == "requires_grad" and single(value) is False:
        for owner in receiver.of:
            walk.establish(owner, "frozen")
    elif isinstance(receiver, Tensors) and name == "requires_grad":
        for owner in receiver.of:
            walk.establish(owner, "partly frozen")
    elif isinstance(receiver, Tensors):
        contents.fill(walk, receiver)
        dtypes.forget(walk, receiver)


def set_item(walk: Walk, outer: Value, key: Value, value: Value, node: ast.AST) -> None:
    """`outer[key] = value`."""
    if outer == External("os.environ"):
        from ..torch_api.launch import environment_set

        environment_set(walk, key, value, node)
    contents.fill(walk, outer)
    if single(key) == "params":
        _exchange(walk, outer, node)
    if not isinstance(outer, Obj):
        return
    content = walk.content(outer)
    if content is None:
        walk.establish(outer, "replaced")
    if walk.what(outer) is What.MODULE:
        attach(walk, node, outer, value)
        walk.hold(outer, value)
        walk.label(value, "[*]", outer)
    if isinstance(content, Items):
        items = {**dict(content.items), key: value}
        walk.store.set((outer.id, "%items"), Items(tuple(items.items())[:200], content.exact))
    elif isinstance(content, Elements):
        walk.store.set((outer.id, "%items"), Elements((*content.items, value)[:_CONTAINER_LIMIT], exact=False))
    elif outer.what is What.OPAQUE:
        walk.establish(outer, "changed")
        escape_one(walk, node, value)
    elif outer.what is What.INSTANCE and (method := find_method(walk, outer, "__setitem__")) is not None:
        call_value(walk, method, Call(walk, node, [key, value], {}))


def _exchange(walk: Walk, group: Value, node: ast.AST) -> None:
    """`group["params"] = ...`, where the group was found in the `param_groups` of an optimizer, or what may be one."""
    around = list(group.found_in()) if isinstance(group, Obj) else []
    if any(o.parent is not None and o.parent[1] == "param_groups" for o in around):
        known = next((o for o in around if walk.what(o) is What.OPTIMIZER), None)
        walk.emit(ParametersExchanged, node, optimizer=walk.ref(known) if known is not None else None)


def extend(walk: Walk, target: Obj, found: Iteration) -> None:
    """`target.extend(...)` of a list."""
    content = walk.elements(target)
    if content is not None:
        items = (*content.items, *found.values)[:_CONTAINER_LIMIT]
        walk.store.set((target.id, "%items"), Elements(items, content.exact and found.exact))
