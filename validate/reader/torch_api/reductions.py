"""Reductions of sharded tensors, and what is computed from them."""

from __future__ import annotations

import ast

from ..values import NONE, Const, Obj, Part, Sym, Tensors, Value, What, members
from ..walk import masked
from ..walk.calls import Call, call_library
from ..walk.parts import part_in, read_part, reduced_part, scaled
from .table import anything, api

_REDUCTIONS = ("norm", "sum", "max", "min", "mean", "amax", "amin")
_OVER_DIMS = {"dim", "axis", "keepdim"}


@anything(*_REDUCTIONS)
def _reduced(call: Call, receiver: Value) -> Value | None:
    how = call.node.func.attr if isinstance(call.node, ast.Call) and isinstance(call.node.func, ast.Attribute) else ""
    if _OVER_DIMS & set(call.kwargs) or (call.args and how != "norm") or len(call.args) > 1:
        return None
    made = reduced_part(call.walk, receiver, how)
    if made is not None or how not in ("mean", "sum") or not isinstance(call.node, ast.Call):
        return made
    of = call.node.func.value if isinstance(call.node.func, ast.Attribute) else call.node
    is_opaque = isinstance(receiver, Obj) and call.walk.what(receiver) is What.OPAQUE
    if not is_opaque and not isinstance(receiver, Sym):
        return None
    if how == "sum":
        return masked.summed(call.walk, receiver, ast.unparse(of))
    mean = call.walk.unknown()
    if is_opaque:  # what was computed may have been divided before
        call.walk.establish(mean, "mean")
    masked.averaged(call.walk, mean, of)
    return mean


@anything("pow", "square", "abs", "double", "neg")
def _each(_call: Call, receiver: Value) -> Value | None:
    """An operation on each element leaves the tensor where it is."""
    return receiver if isinstance(receiver, Tensors) else None


@anything("item", "tolist")
def _read(call: Call, receiver: Value) -> Value | None:
    if not isinstance(receiver, Part):
        return None
    func = call.node.func if isinstance(call.node, ast.Call) else None
    value = func.value if isinstance(func, ast.Attribute) else call.node
    return read_part(call.walk, receiver, call.node, value) if receiver.pending else receiver


@api("torch.norm", "torch.linalg.vector_norm", "torch.linalg.norm", "torch.sum", "torch.nn.utils.get_total_norm")
def _norm(call: Call) -> Value:
    walk = call.walk
    given = call.args[0] if call.args else NONE
    if not _OVER_DIMS & set(call.kwargs) and call.name != "torch.nn.utils.get_total_norm":
        made = reduced_part(walk, given, "sum" if call.name == "torch.sum" else "norm")
        if made is not None:
            return made
    whole = _made_of(call)
    if call.name == "torch.sum" and len(call.args) == 1 and not call.kwargs and isinstance(whole, Obj):
        return masked.summed(walk, given, ", ".join(map(ast.unparse, getattr(call.node, "args", ()))))
    return whole


@api("torch.count_nonzero")
def _counted(call: Call) -> Value:
    call_library(call, call.name)
    return masked.summed(call.walk, call.args[0] if call.args else NONE, "mask" if len(call.args) == 1 else "")


@api("torch._foreach_norm")
def _foreach_norm(call: Call) -> Value:
    walk = call.walk
    given = call.args[0] if call.args else NONE
    inner = [m for _, v in members(given) if isinstance(v, Obj) for e in _elements(call, v) for _, m in members(e)]
    made = next((p for v in (given, *inner) if (p := reduced_part(walk, v, "norm")) is not None), None)
    return walk.new_list([made], exact=False) if made is not None else _made_of(call)


def _elements(call: Call, value: Obj) -> tuple[Value, ...]:
    content = call.walk.elements(value)
    return content.items if content is not None else ()


@api(
    "torch.stack", "torch.tensor", "torch.as_tensor", "torch.cat", "torch.sqrt", "torch.pow", "torch.clamp",
    "torch.minimum", "torch.maximum", "torch.min", "torch.max", "torch.div", "torch.mul", "math.sqrt", "math.pow",
)  # fmt: skip
def _made_of(call: Call) -> Value:
    local = part_in(call.walk, *call.everything())
    return local if local is not None else call_library(call, call.name)


@anything("mul_", "div_")
def _in_place(call: Call, receiver: Value) -> Value | None:
    if isinstance(receiver, Obj):
        call.walk.establish(receiver, "scaled")
    elif isinstance(receiver, Sym):
        call.walk.store.set((receiver.key, "%scaled"), Const(True))
    if not isinstance(receiver, Tensors) or not call.args:
        return None
    scaled(call.walk, receiver, call.args[0], call.node)
    return receiver


@api("torch._foreach_mul_", "torch._foreach_div_")
def _foreach_in_place(call: Call) -> Value:
    if len(call.args) > 1:
        scaled(call.walk, call.args[0], call.args[1], call.node)
    return NONE
