"""Activation checkpointing: wrappers that take a module's place and compute its forward again in backward."""

from __future__ import annotations

import ast

from ...events import ActivationsCheckpointed
from ..values import NONE, Class, Function, Value
from ..walk import prefixes
from ..walk.calls import Call
from ..walk.classes import lineage
from ..walk.core import Walk
from .modules import as_modules
from .table import api

_WRAPPERS = "torch.distributed.algorithms._checkpoint.checkpoint_wrapper."


@api(_WRAPPERS + "checkpoint_wrapper", _WRAPPERS + "CheckpointWrapper", _WRAPPERS + "ptd_checkpoint_wrapper")
def _checkpoint_wrapper(call: Call) -> Value:
    for module in as_modules(call.walk, call.get(0, "module") or call.get(0, "mod")):
        call.walk.emit(ActivationsCheckpointed, call.node, module=call.walk.ref(module))
    wrapped = call.args[0] if call.args else call.kwargs.get("module", call.walk.unknown())
    return prefixes.wrap(wrapped, outside=True)


@api(_WRAPPERS + "apply_activation_checkpointing")
def _wrap_inside(call: Call) -> Value:
    """Of what it wraps in a model, the sharded modules whose class `check_fn` plainly asks for."""
    walk, check = call.walk, call.get(2, "check_fn")
    wanted = _class_asked_for(walk, check) if isinstance(check, Function) else None
    models = as_modules(walk, call.get(0, "model"))
    for module in list(walk.modules.values()) if wanted is not None else ():
        is_wanted = isinstance(module.cls, Class) and wanted in lineage(module.cls)[0] and walk.fact(module, "sharded")
        if is_wanted and any(walk.holds(model, module.id) for model in models):
            walk.emit(ActivationsCheckpointed, call.node, module=walk.ref(module))
    return NONE


def _class_asked_for(walk: Walk, check: Function) -> Value | None:
    """The class of the program in `lambda module: isinstance(module, Block)`."""
    body = check.node.body
    test = body if isinstance(body, ast.expr) else getattr(body[-1], "value", None)
    if not (isinstance(test, ast.Call) and ast.unparse(test.func) == "isinstance" and len(test.args) == 2):
        return None
    name, scope = test.args[1], check.scope
    outer: int | None = scope
    while isinstance(name, ast.Name) and outer is not None:
        found = walk.get((outer, name.id))
        if found is not None:
            return found if isinstance(found, Class) else None
        outer = walk.scopes[outer]
    return None
