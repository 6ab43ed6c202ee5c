"""`x.name` for every kind of `x`."""

from __future__ import annotations

import ast
from collections.abc import Callable

from ...events import Form, Kind
from ..names import canonical
from ..values import (
    Bound,
    Class,
    Const,
    External,
    Function,
    Method,
    Namespace,
    Obj,
    RngState,
    Super,
    Sym,
    Tensors,
    Tuple,
    Union,
    Value,
    What,
    members,
    union,
)
from . import contents, prefixes, ties, uses
from .classes import lineage
from .core import Walk

# (what, name) -> the attribute of an object without source; filled by `torch_api`.
ATTRIBUTES: dict[tuple[What, str], Callable[[Walk, Obj, ast.AST], Value]] = {}


def attribute(walk: Walk, value: Value, name: str, node: ast.AST, called: bool = False) -> Value:
    """`value.name`; `called` when it is about to be called, so that what has no source is a method."""
    if isinstance(value, Union):
        with walk.restored("among", True):
            return union([(path, attribute(walk, v, name, node, called)) for path, v in members(value)])
    if isinstance(value, External):
        uses.named(walk, f"{value.name}.{name}", node)
        return External(canonical(f"{value.name}.{name}"))
    if isinstance(value, Namespace):
        from .imports import from_namespace

        return from_namespace(walk, value, name, node)
    if isinstance(value, Class):
        return _of_class(walk, value, value, name, node) or Method(value, name)
    if isinstance(value, Super):
        return _of_super(walk, value, name, node)
    if isinstance(value, Obj):
        return _of_object(walk, value, name, node, called)
    if called or isinstance(value, Bound | Function):
        return Method(value, name)
    if isinstance(value, Tensors):
        if name == "_local_tensor":
            return Tensors(value.of, value.kind, Form.LOCAL, value.via)
        return value if name in ("data", "grad") else walk.sym("attribute", value, name)
    if isinstance(value, RngState | Tuple):
        return value
    return walk.sym("attribute", value, name, rank=isinstance(value, Sym) and value.rank)


def _of_object(walk: Walk, obj: Obj, name: str, node: ast.AST, called: bool) -> Value:
    if name == "__class__" and obj.cls is not None:
        return obj.cls
    if name in ("_parameters", "_buffers", "__dict__"):
        contents.fill(walk, obj)
        ties.may_tie(walk, obj, node)
    if name == "__dict__" or (name == "training" and not called):
        return walk.sym("attribute", obj, name)
    stored = walk.attribute(obj, name)
    if stored is not None:
        if (obj.id, "." + name) in walk.outdated:
            from .filled import variable_read

            variable_read(walk, (obj.id, "." + name), node)
        is_set = isinstance(stored, Const) and _is_open(walk, obj)
        return walk.sym("attribute", obj, name) if is_set else stored
    if isinstance(obj.cls, Class):
        found = _of_class(walk, obj.cls, obj, name, node)
        if isinstance(found, Const) and (_is_open(walk, obj) or _is_field(obj.cls, name)):
            return walk.sym("attribute", obj, name)
        if found is not None:
            return found
    uses.member(walk, obj, name, node, called)
    what = walk.what(obj)
    assert what is not None
    special = ATTRIBUTES.get((what, name))
    if special is not None:
        return special(walk, obj, node)
    if called:
        return Method(obj, name)
    if what is What.MODULE and isinstance(obj.cls, External) and name in ("weight", "bias"):
        return Tensors((obj,), Kind.MODEL, walk.form_of(obj))
    if isinstance(obj.data, str):  # a device: its type, its index
        return walk.sym("attribute", obj, name)
    from .expressions import child

    return child(walk, obj, name)


def _is_open(walk: Walk, obj: Obj) -> bool:
    """Whether the program has set attributes of an object whose names are not known."""
    return obj.what is What.INSTANCE and walk.fact(obj, "open")


def _is_field(cls: Class, name: str) -> bool:
    """Whether a library fills in what the body of a class gives a default: that of a model of pydantic, say."""
    classes, complete = lineage(cls)
    return not complete and any(
        isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name) and part.target.id == name
        for base in classes
        if isinstance(base, Class)
        for part in base.node.body
    )


def _of_class(walk: Walk, cls: Class, receiver: Value, name: str, node: ast.AST) -> Value | None:
    """A name that the body of a class or of its bases defines, bound to the receiver."""
    for base in lineage(cls)[0]:
        if not isinstance(base, Class):
            continue
        found = walk.get((base.scope, name))
        if found is not None:
            return union([(path, _bind(walk, v, receiver, base, node)) for path, v in members(found)])
    return None


def _bind(walk: Walk, value: Value, receiver: Value, owner: Class, node: ast.AST) -> Value:
    if not isinstance(value, Function):
        return value
    if value.flavor == "classmethod":
        return Bound(receiver if isinstance(receiver, Class) else getattr(receiver, "cls", None) or owner, value)
    if value.flavor == "staticmethod" or isinstance(receiver, Class):
        return value
    if value.flavor in ("property", "cached property"):
        from .calls import Call, call_value

        return call_value(walk, Bound(receiver, value), Call(walk, node, [], {}))
    return Bound(prefixes.unwrap(receiver), value)


def _of_super(walk: Walk, value: Super, name: str, node: ast.AST) -> Value:
    start = (
        value.receiver.cls if isinstance(value.receiver, Obj) and isinstance(value.receiver.cls, Class) else value.owner
    )
    classes = lineage(start)[0]
    after = classes[classes.index(value.owner) + 1 :] if value.owner in classes else lineage(value.owner)[0][1:]
    for base in after:
        if isinstance(base, Class) and (found := walk.get((base.scope, name))) is not None:
            return union([(path, _bind(walk, v, value.receiver, base, node)) for path, v in members(found)])
    return Method(value, name)
