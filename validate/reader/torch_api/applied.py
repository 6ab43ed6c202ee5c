"""State dicts that are given to an object: what is known of their tensors, and of who reads what the call returns."""

from __future__ import annotations

import ast
from typing import Any

from ...events import Form
from ..values import Const, Elements, External, Items, Obj, StateData, Value, What, members
from ..walk.calls import Call
from ..walk.core import Walk

_FILES = {External("torch.load"), External("safetensors.torch.load_file")}


def of_given(call: Call, state: Value | None) -> dict[str, Any]:
    """The fields of the event that tell of a state dict which is given to an object by this call."""
    given = [v for _, v in members(state)] if state is not None else []
    forms = {_form(call.walk, v) for v in given if not _is_empty(call.walk, v)}
    statement = call.walk.here[1]
    return {
        "form": forms.pop() if len(forms) == 1 else Form.UNKNOWN,
        "empty": any(_is_empty(call.walk, v) or _is_empty_elsewhere(v) for v in given) or None,
        "unread": None
        if _is_made_here(call.walk, given)
        else isinstance(statement, ast.Expr) and statement.value is call.node,
    }


def _is_made_here(walk: Walk, given: list[Value]) -> bool:
    """Whether the program put the state dict together key by key, so that it has looked at the names."""
    return any(isinstance(v, Obj) and v.what is What.DICT and not _is_remade(walk, v) for v in given)


def _is_remade(walk: Walk, given: Obj) -> bool:
    """Whether it is another one with other names, all alike."""
    content = walk.items(given)
    return walk.fact(given, "remade") and content is not None and len(content.items) == 1


def flag(call: Call, position: int, name: str, otherwise: bool) -> bool | None:
    """A switch of the call, None where it is not known."""
    value = call.get(position, name)
    if value is None:
        return None if call.open else otherwise
    return bool(value.value) if isinstance(value, Const) else None


def _form(walk: Walk, value: Value) -> Form:
    if isinstance(value, Obj) and isinstance(value.data, StateData):
        return value.data.form
    if isinstance(value, Obj) and value.what is What.OPAQUE and _is_from_file(walk, value):
        return Form.FULL
    if isinstance(value, Obj) and value.what is What.DICT and not walk.has_escaped(value):
        content = walk.items(value)  # `{name.removeprefix("module."): tensor for name, tensor in weights.items()}`
        if content is not None and content.items and all(_form(walk, v) is Form.FULL for _, v in content.items):
            return Form.FULL
    return Form.UNKNOWN


def _is_from_file(walk: Walk, value: Obj) -> bool:
    """Whether this is, or is an unchanged part of, what was read from a file that is the same for all ranks."""
    current: Obj | None = value
    while current is not None and not (walk.fact(current, "changed") or walk.has_escaped(current)):
        if current.cls in _FILES:
            return not walk.fact(current, "of rank")
        current = current.parent[0] if current.parent is not None and current.parent[1].startswith("[") else None
    return False


def _is_empty(walk: Walk, value: Value) -> bool:
    if isinstance(value, Const):
        return value.value is None
    content = walk.content(value) if isinstance(value, Obj) else None
    return isinstance(content, Items | Elements) and content.exact and not content.items


def _is_empty_elsewhere(value: Value) -> bool:
    """Whether it was gathered to the first rank alone."""
    data = value.data if isinstance(value, Obj) else None
    return isinstance(data, StateData) and data.full is True and data.offload is True
