"""Tensor parallelism: which parameters a plan distributes, and which it leaves out."""

from __future__ import annotations

import fnmatch

from ...events import Parallelised
from ..values import Const, External, Obj, Tensors, Value, What
from ..walk.calls import Call, call_library
from ..walk.core import Walk
from ..walk.structure import owning
from .launch import root_of
from .modules import as_modules
from .table import api

_STYLES = "torch.distributed.tensor.parallel."
_OF_INPUTS = {  # they prepare what goes through a module, and leave its parameters
    External(_STYLES + name) for name in ("PrepareModuleInput", "PrepareModuleOutput", "PrepareModuleInputOutput")
}
_OF_PARAMETERS = {  # each module that they are for gets new ones, DTensors
    External(_STYLES + name) for name in ("ColwiseParallel", "RowwiseParallel", "SequenceParallel")
}
_REPLICATES = {External(_STYLES + "SequenceParallel")}  # they leave the parameters whole
_BY_HAND = (0, "%distributes")  # the cell that tells of parameters which the program distributes itself


@api("torch.distributed.tensor.parallel.parallelize_module")
def _parallelize(call: Call) -> Value:
    walk = call.walk
    given, mesh = call.get(0, "module"), call.get(1, "device_mesh")
    plan = call.get(2, "parallelize_plan")
    known = walk.ref(mesh) if isinstance(mesh, Obj) and walk.what(mesh) is What.MESH else None
    for module in as_modules(walk, given):
        walk.establish(module, "parallelised")
        styles = None if call.open else _styles(walk, plan)
        renewed = list[Obj]()
        if styles is None:
            walk.establish(module, "parallel somehow")
        for name, owner in owning(walk, module):
            by = [style for pattern, style in styles or () if _matches(name, pattern)]
            if by:
                walk.establish(owner, "parallel")
            if walk.fact(owner, "tied") and any(style.cls in _OF_PARAMETERS for style in by):
                renewed.append(owner)
        walk.emit(
            Parallelised,
            call.node,
            module=walk.ref(module),
            mesh=known,
            root=root_of(walk, mesh),
            divides=None if styles is None else any(style.cls not in _REPLICATES for _, style in styles),
            renewed=tuple(map(walk.ref, renewed)),
        )
    return given if given is not None else walk.unknown()


def _styles(walk: Walk, plan: Value | None) -> list[tuple[str, Obj]] | None:
    """The names of the modules whose parameters a plan distributes, and how; None where they are not all known.

    A plan is a dictionary, or one style for the module itself.
    """
    if isinstance(plan, Obj) and plan.cls in _OF_INPUTS:
        return []
    content = walk.items(plan) if isinstance(plan, Obj) and plan.what is What.DICT else None
    if content is None or not content.exact:
        return None
    found: list[tuple[str, Obj]] = []
    for key, style in content.items:
        if not isinstance(key, Const) or not isinstance(style, Obj):
            return None
        if style.cls not in _OF_INPUTS:
            found.append((str(key.value), style))
    return found


def _matches(name: str, pattern: str) -> bool:
    """Whether a pattern names a module, or one around it."""
    parts, wanted = name.split("."), pattern.split(".")
    return len(wanted) <= len(parts) and all(
        part == "*" or fnmatch.fnmatchcase(part, want) for part, want in zip(parts, wanted, strict=False)
    )


@api("torch.distributed.tensor.distribute_module", "torch.distributed.tensor.distribute_tensor")
def _distribute(call: Call) -> Value:
    call.walk.store.set(_BY_HAND, Const(True))
    return call_library(call, call.name)


def mixed(walk: Walk, parameters: Value | None) -> bool | None:
    """Whether a plan has distributed some of these parameters, all of one module, and left out others.

    None where that is not known.
    """
    if not isinstance(parameters, Tensors) or len(parameters.of) != 1 or walk.store.get(_BY_HAND) is not None:
        return None
    (module,) = parameters.of
    every = [owner for _, owner in owning(walk, module)]
    doubtful = walk.having("parallel somehow")
    if any(m.id == module.id or walk.holds(m, module.id) or walk.holds(module, m.id) for m in doubtful):
        return None
    distributed = [walk.fact(owner, "parallel") for owner in every]
    return True if any(distributed) and not all(distributed) else None
