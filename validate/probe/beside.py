"""Weights that the program keeps beside those that its optimizers step: averages, teachers, targets.

They are found in two places: among the program's modules, and as copies of all that an optimizer steps, tensor by
tensor, in dictionaries and lists that are reached from the variables of its functions under way.
"""

from __future__ import annotations

import sys
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from .digest import digest, local_part
from .frames import programs
from .modules import Modules, class_name

DEEP = 4  # attributes and items from a variable to what holds the tensors
LONGEST = 4096  # items of a dictionary or list that is looked into
MOST = 20_000  # values looked at each time
_PLAIN = frozenset({str, bytes, int, float, bool, complex, type(None), type})


class Beside:
    """What one rank holds of such weights, by the name of what holds them."""

    def __init__(self, modules: Modules) -> None:
        self._modules = modules
        self._snapshots = set[int]()  # digests of what the optimizers step, as it has ever been

    def were(self, digests: Iterable[int]) -> None:
        """Know what the optimizers step as it is now."""
        self._snapshots.update(digests)

    def take(self, optimizers: list[Optimizer], frame: FrameType | None) -> dict[str, int]:
        """A digest of each holder of such weights; one that has only what the optimizers step, now or once, is none."""
        found: dict[str, int] = {}
        for name, held in self._holders(optimizers, frame):
            crcs = [crc for tensor in held if (crc := digest(tensor)) is not None]
            if not self._snapshots.issuperset(crcs):
                found.setdefault(name, zlib.crc32(repr(crcs).encode()))
        return found

    def shards(self, optimizers: list[Optimizer], frame: FrameType | None) -> Iterator[tuple[str, torch.Tensor]]:
        """The sharded tensors of each holder, by its name and their number: what is plain may be one rank's own."""
        for name, held in self._holders(optimizers, frame):
            yield from ((f"{name}[{number}]", t) for number, t in enumerate(held) if isinstance(t, DTensor))

    def _holders(
        self, optimizers: list[Optimizer], frame: FrameType | None
    ) -> Iterator[tuple[str, list[torch.Tensor]]]:
        stepped = [[p for group in o.param_groups for p in group["params"]] for o in optimizers]
        yield from self._of_modules({id(p) for of in stepped for p in of})
        yield from self._of_variables(stepped, optimizers, frame)

    def _of_modules(self, trained: set[int]) -> Iterator[tuple[str, list[torch.Tensor]]]:
        """Of each outermost module, the parameters that no optimizer steps; of one without others, the buffers too."""
        names = Counter[str]()
        for root in self._modules.roots():
            names[class_name(root)] += 1
            own = list(_state(root))
            kept = [tensor for tensor in own if id(tensor) not in trained]
            weights: list[torch.Tensor] = [tensor for tensor in kept if isinstance(tensor, nn.Parameter)]
            if weights:
                number = f" {count}" if (count := names[class_name(root)]) > 1 else ""
                yield f"{class_name(root)}{number}", kept if len(kept) == len(own) else weights

    def _of_variables(
        self, stepped: list[list[nn.Parameter]], optimizers: list[Optimizer], frame: FrameType | None
    ) -> Iterator[tuple[str, list[torch.Tensor]]]:
        fewest = min((len(of) for of in stepped if of), default=sys.maxsize)
        found = [(name, held) for name, held in _collections(frame) if len(held) >= fewest]
        if not found:
            return
        shapes = [Counter(shape(p) for p in of) for of in stepped if of for shape in (_shape, _local_shape)]
        known = set(map(_address, self._known(stepped, optimizers))) - {None}
        for name, held in found:
            forms = [Counter(map(shape, held)) for shape in (_shape, _local_shape)]
            if any(of <= form for of in shapes for form in forms) and not any(_address(t) in known for t in held):
                yield name, held

    def _known(self, stepped: list[list[nn.Parameter]], optimizers: list[Optimizer]) -> Iterator[Any]:
        """What is looked at elsewhere: the state of modules and optimizers, and gradients."""
        for of in stepped:
            yield from of
            yield from (p.grad for p in of)
        for optimizer in optimizers:
            for state in optimizer.state.values():
                yield from state.values()
        for root in self._modules.roots():
            yield from _state(root)


def _state(root: nn.Module) -> Iterator[torch.Tensor]:
    """The parameters and the persistent buffers in a module."""
    for module in root.modules():
        yield from (p for p in module._parameters.values() if p is not None)
        for key, buffer in module._buffers.items():
            if buffer is not None and key not in module._non_persistent_buffers_set:
                yield buffer


def _collections(frame: FrameType | None) -> Iterator[tuple[str, list[torch.Tensor]]]:
    """The dictionaries and lists of float tensors that variables of the program's functions under way lead to."""
    seen = set[int]()
    todo = [(name, value, 0) for name, value in _variables(frame) if _may_hold(value)]
    for name, value, deep in todo:  # grows as it is walked
        if len(todo) > MOST:
            return
        if id(value) in seen:
            continue
        seen.add(id(value))
        items = _items(value)
        if held := [item for _, item in items if isinstance(item, torch.Tensor) and item.is_floating_point()]:
            yield name, held
        if deep < DEEP:
            todo += [(f"{name}{key}", item, deep + 1) for key, item in items if _may_hold(item)]


def _may_hold(value: Any) -> bool:
    return type(value) not in _PLAIN and not isinstance(value, torch.Tensor)


def _variables(frame: FrameType | None) -> Iterator[tuple[str, Any]]:
    files = set[str]()
    while frame is not None:
        if programs(file := frame.f_code.co_filename):
            if frame.f_locals is not frame.f_globals:
                yield from list(frame.f_locals.items())
            if file not in files:
                files.add(file)
                yield from list(frame.f_globals.items())
        frame = frame.f_back


def _items(value: Any) -> list[tuple[str, Any]]:
    """What a value holds, as far as it is a dictionary, a list, or an object not of Python's or torch's."""
    if isinstance(value, Mapping) and type(value).__module__ in ("builtins", "collections"):
        return [(f"[{key!r}]", item) for key, item in value.items()] if len(value) <= LONGEST else []
    if type(value) in (list, tuple):
        return [(f"[{number}]", item) for number, item in enumerate(value)] if len(value) <= LONGEST else []
    if type(value).__module__.partition(".")[0] in _FOREIGN:
        return []
    attributes = list(getattr(value, "__dict__", {}).items())
    skipped = "_" if isinstance(value, nn.Module) else "__"  # what a module registers is found as its state
    return [(f".{name}", item) for name, item in attributes if not name.startswith(skipped)]


_FOREIGN = frozenset({*sys.stdlib_module_names, "torch", "numpy", __name__.partition(".")[0]} - {"__main__"})


def _shape(tensor: torch.Tensor) -> tuple[int, ...]:
    return tuple(tensor.shape)


def _local_shape(tensor: torch.Tensor) -> tuple[int, ...] | None:
    local = local_part(tensor)
    return None if local is None else tuple(local.shape)


def _address(value: Any) -> int | None:
    local = local_part(value) if isinstance(value, torch.Tensor) else None
    return local.untyped_storage().data_ptr() if local is not None and local.numel() else None
