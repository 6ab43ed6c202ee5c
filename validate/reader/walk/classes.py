"""Classes of the program: their bases, and what kind of object they make."""

from __future__ import annotations

import ast
import sys
from collections.abc import Sequence

from ..values import Class, External, Value, What

# Bases of a library that say what an instance is. A class of a library is not looked into.
_BASES = {
    "torch.nn.Module": What.MODULE,
    "torch.nn.ModuleList": What.MODULE,
    "torch.nn.ModuleDict": What.MODULE,
    "torch.nn.Sequential": What.MODULE,
    "torch.optim.Optimizer": What.OPTIMIZER,
    "torch.optim.lr_scheduler.LRScheduler": What.SCHEDULER,
    "torch.optim.lr_scheduler._LRScheduler": What.SCHEDULER,
}
_PLAIN = {  # bases that add nothing which the reader would have to know
    "builtins.object", "abc.ABC", "enum.Enum", "enum.IntEnum", "enum.StrEnum", "typing.Protocol", "typing.Generic",
    "torch.distributed.checkpoint.stateful.Stateful", "torch.utils.data.Dataset", "torch.utils.data.IterableDataset",
    "torch.utils.data.Sampler", "typing.NamedTuple", "builtins.Exception",
}  # fmt: skip


def lineage(cls: Value) -> tuple[list[Value], bool]:
    """A class and its bases, nearest first; False when some base could not be seen."""
    found: dict[Value, None] = {}
    complete = True
    todo = [cls]
    while todo:
        current = todo.pop(0)
        if current in found:
            continue
        found[current] = None
        if isinstance(current, Class):
            todo += current.bases
        elif isinstance(current, External):
            if current.name.startswith("torch.nn."):
                found[External("torch.nn.Module")] = None
            elif current.name not in _PLAIN and current.name not in _BASES:
                complete = False
        else:
            complete = False
    return list(found), complete


def makes(cls: Class) -> What:
    """What an instance of the class is."""
    classes, _ = lineage(cls)
    for base in classes:
        if isinstance(base, External):
            if base.name in _BASES:
                return _BASES[base.name]
            if base.name.startswith("torch.optim.lr_scheduler."):
                return What.SCHEDULER
            if base.name.startswith("torch.optim."):
                return What.OPTIMIZER
            if base.name.startswith("torch.nn."):
                return What.MODULE
            if base.name.endswith(("PreTrainedModel", "LightningModule")):
                return What.MODULE
    return What.MODULE if _runs_as_module(classes) else What.INSTANCE


def _runs_as_module(classes: Sequence[Value]) -> bool:
    """Whether a class that a library's class is derived from, of which nothing is known, has a `forward`."""
    libraries = {c.name.partition(".")[0] for c in classes if isinstance(c, External)}
    unknown = bool(libraries - {"torch", *sys.stdlib_module_names})
    bodies = (c.node.body for c in classes if isinstance(c, Class))
    return unknown and any(isinstance(s, ast.FunctionDef) and s.name == "forward" for body in bodies for s in body)
