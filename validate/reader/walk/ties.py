"""Weights that are tied: one parameter that two modules have."""

from __future__ import annotations

import ast

from ...events import Kind, Tied, Via
from ..values import Obj, Tensors, Value, What, members
from .contents import PARAMETER
from .core import Walk
from .structure import is_leaf

_MODULES = (What.MODULE, What.OPAQUE)


def assigned(walk: Walk, outer: Obj, name: str, value: Value, node: ast.AST) -> None:
    """`outer.name = value`, which may be a parameter of another module."""
    if walk.what(outer) not in _MODULES:
        return
    for _, v in members(value):
        owner = _owner(walk, name, v)
        if owner is not None and owner.id == outer.id:  # by way of a module that it was tied to
            may_tie(walk, outer, node)
        elif owner is not None and not (owner.many or walk.holds(outer, owner.id) or walk.fact(owner, "replaced")):
            walk.ties = True
            for end in (outer, owner):
                walk.establish(end, "tied")
            walk.emit(Tied, node, module=walk.ref(outer), name=name, to=walk.ref(owner))
    if walk.ties and walk.fact(outer, "tied") and not any(_owner(walk, name, v) for _, v in members(value)):
        walk.escape(node, outer)  # perhaps it was this parameter that was tied
    for _, v in members(value):
        if isinstance(v, Obj) and v.cls == PARAMETER and walk.store.get((v.id, "%owner")) is None:
            walk.store.set((v.id, "%owner"), outer)


def may_tie(walk: Walk, module: Value, node: ast.AST) -> None:
    """What happens to the module here cannot be followed, and it may tie weights again."""
    if walk.ties and isinstance(module, Obj) and walk.what(module) is What.MODULE:
        walk.emit(Tied, node, module=walk.ref(module))


def method_called(walk: Walk, receiver: Value, name: str, node: ast.AST) -> None:
    """A method without source is called; one that only reads or switches something on ties nothing."""
    if (
        isinstance(receiver, Obj)
        and not is_leaf(receiver)
        and not name.startswith(("get_", "enable_", "disable_", "num_"))
    ):
        may_tie(walk, receiver, node)


def replaced(walk: Walk, before: Value | None, value: Value, node: ast.AST) -> None:
    """Another value takes the place of one that may be a module with a tied weight: what holds it now is not known."""
    for _, v in members(before) if before is not None else ():
        if isinstance(v, Obj) and walk.what(v) in _MODULES and v not in (new for _, new in members(value)):
            walk.establish(v, "replaced")
            if walk.ties and walk.what(v) is What.MODULE:
                walk.escape(node, v)


def _owner(walk: Walk, name: str, value: Value) -> Obj | None:
    """The module that a value is a parameter of, None where it is none, or not known to be one."""
    if isinstance(value, Tensors):
        # A module may also keep all parameters of another one, under a name that says so.
        is_one = name.endswith(("weight", "bias")) and value.kind is Kind.MODEL and value.via is Via.VALUE
        return value.of[0] if is_one and len(value.of) == 1 else None
    if not isinstance(value, Obj):
        return None
    owner = walk.store.get((value.id, "%owner"))
    if isinstance(owner, Obj):
        return owner
    is_weight = value.what is What.OPAQUE and value.parent is not None and value.parent[1] == name == "weight"
    return value.parent[0] if is_weight and value.parent is not None else None
