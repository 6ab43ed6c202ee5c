"""Reads what lies in a dictionary that is saved or loaded: the entries of its event."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ..events import Entry, Form, Kind, Ref, Via
from ..wrappers import WRAPPERS, plain_name
from .digest import digest, local_part
from .identity import Objects
from .modules import Modules
from .observer import Observer
from .states import Taken

ENTRIES_LIMIT = 256  # entries told of one dictionary
SMALL = 2**20  # bytes up to which a tensor's value is compared across ranks
RNG_BYTES = (5056, 16)  # sizes of the state of torch's CPU and CUDA generators


@dataclass(frozen=True)
class Contents:
    """The entries of a dictionary, and digests of those whose value may differ from rank to rank."""

    entries: tuple[Entry, ...]
    digests: dict[str, int]
    buffers: dict[str, dict[str, int]]  # of models, by the key of the entry and by name


class Reader:
    """Reads dictionaries; `optimizers` are those that the program has built."""

    def __init__(self, observer: Observer, modules: Modules, taken: Taken) -> None:
        self._observer = observer
        self._modules = modules
        self._taken = taken
        self._optimizers = Objects()

    def optimizer(self, optimizer: Optimizer) -> None:
        """Take note of an optimizer of the program's, whose state a dictionary may share."""
        self._optimizers.set(optimizer, True)

    def read(self, original: Any, expanded: Any, frame: FrameType | None, *, compare: bool) -> Contents:
        """The entries of `expanded`: what DCP got when it asked the `Stateful` objects in `original` for their state.

        With `compare`, digests of small values are taken, for the ranks to be compared by.
        """
        entries: list[Entry] = []
        digests: dict[str, int] = {}
        buffers: dict[str, dict[str, int]] = {}
        for entry, value in self._entries("", original, expanded, frame):
            if len(entries) == ENTRIES_LIMIT:
                entries.append(Entry(key="*", kind=Kind.UNKNOWN))
                break
            entries.append(entry)
            if compare and entry.kind not in (Kind.MODEL, Kind.OPTIMIZER) and (crc := _digest(value)) is not None:
                digests[entry.key] = crc
            if compare and entry.kind is Kind.MODEL and (found := self._buffers(entry.of, value)):
                buffers[entry.key] = found
        return Contents(tuple(entries), digests, buffers)

    def _buffers(self, of: Ref | None, state: Any) -> dict[str, int]:
        """Digests of the buffers of a model in its state dict, as far as these are small."""
        module = self._module(of)
        if module is None:
            return {}
        names = {plain_name(name) for name, _ in module.named_buffers()}
        return {
            name: crc
            for name, tensor in tensors_in("", state)
            if plain_name(name) in names and (crc := _digest(tensor)) is not None
        }

    def _entries(self, key: str, original: Any, value: Any, frame: FrameType | None) -> Iterator[tuple[Entry, Any]]:
        if (known := self._of_object(original, frame)) is not None:
            kind, ref = known
            yield self._entry(key, kind, ref, Via.OBJECT, original, value), value
            return
        if not isinstance(value, dict):
            yield self._leaf(key, value), value
            return
        if (seen := self._taken.get(value)) is not None:
            kind, ref, via = seen
            yield self._entry(key, kind, ref, via, None, value), value
            return
        if {"state", "param_groups"} <= set(value):
            yield self._entry(key, Kind.OPTIMIZER, None, Via.VALUE, None, value), value
            return
        if "last_epoch" in value and ("base_lrs" in value or "_last_lr" in value):
            yield self._entry(key, Kind.SCHEDULER, None, Via.VALUE, None, value), value
            return
        if (model := self._model_of(value)) is not None:
            ref = self._modules.ref(model, frame)
            tensors = {k: v for k, v in value.items() if isinstance(v, torch.Tensor)}
            yield self._entry(key, Kind.MODEL, ref, Via.VALUE, model, tensors), tensors
            value = {k: v for k, v in value.items() if k not in tensors}
        elif _is_loader(original):
            yield self._entry(key, Kind.LOADER, self._named(original, frame), Via.OBJECT, None, value), value
            return
        for name, item in value.items():
            inside = original.get(name) if isinstance(original, dict) else item
            yield from self._entries(f"{key}.{name}" if key else str(name), inside, item, frame)

    def _of_object(self, value: Any, frame: FrameType | None) -> tuple[Kind, Ref] | None:
        if isinstance(value, nn.Module):
            return Kind.MODEL, self._modules.ref(value, frame)
        if isinstance(value, Optimizer):
            return Kind.OPTIMIZER, self._named(value, frame)
        if isinstance(value, LRScheduler):
            return Kind.SCHEDULER, self._named(value, frame)
        return None

    def _named(self, value: object, frame: FrameType | None) -> Ref:
        return self._observer.ref(value, frame, type(value).__name__)

    def _entry(self, key: str, kind: Kind, ref: Ref | None, via: Via, source: Any, value: Any) -> Entry:
        tensors = dict(tensors_in("", value))
        module = source if isinstance(source, nn.Module) else self._module(ref)
        return Entry(
            key=key,
            kind=kind,
            of=ref,
            via=via,
            form=self._form(tensors, module),
            aliased=self._aliased(tensors, kind),
            prefix=_prefix(tensors),
        )

    def _leaf(self, key: str, value: Any) -> Entry:
        if isinstance(value, torch.Tensor):
            kind = Kind.RNG if _is_rng(key, value) else Kind.VALUE
            return Entry(key=key, kind=kind, form=self._form({key: value}, None))
        return Entry(key=key, kind=Kind.RNG if "rng" in key.lower() else Kind.VALUE, form=Form.PLAIN)

    def _module(self, ref: Ref | None) -> nn.Module | None:
        if ref is None:
            return None
        return next((m for m in self._modules.all() if self._observer.identities.known(m) == ref), None)

    def _form(self, tensors: Mapping[str, torch.Tensor], module: nn.Module | None) -> Form:
        if any(isinstance(t, DTensor) for t in tensors.values()):
            return Form.SHARDED
        if not tensors:
            return Form.UNKNOWN
        shapes: dict[str, tuple[int, ...]] = {}
        for root in self._modules.roots() if module is None else [module]:
            shapes.update(self._modules.global_shapes(root))
        same = smaller = 0
        for key, tensor in tensors.items():
            shape = next((shape for fqn, shape in shapes.items() if key == fqn or key.endswith("." + fqn)), None)
            if shape is None:
                continue
            if tuple(tensor.shape) == shape:
                same += 1
            elif tensor.numel() < torch.Size(shape).numel():
                smaller += 1
        if smaller:
            return Form.LOCAL
        return Form.FULL if same else Form.PLAIN

    def _aliased(self, tensors: Mapping[str, torch.Tensor], kind: Kind) -> bool | None:
        """Whether the first tensor that has memory shares it with a living parameter or a tensor of an optimizer."""
        for tensor in tensors.values():
            if (address := _address(tensor)) is not None:
                return address in set(self._live(kind))
        return None

    def _live(self, kind: Kind) -> Iterator[int]:
        if kind is Kind.OPTIMIZER:
            for optimizer in self._optimizers:
                for state in optimizer.state.values():
                    for value in state.values():
                        if isinstance(value, torch.Tensor) and (address := _address(value)) is not None:
                            yield address
            return
        for module in self._modules.all():
            for tensor in (*module._parameters.values(), *module._buffers.values()):
                if tensor is not None and (address := _address(tensor)) is not None:
                    yield address

    def _model_of(self, value: dict[Any, Any]) -> nn.Module | None:
        """The outermost module whose parameters lie in a dictionary that was not seen being taken, by its keys."""
        tensors = {k: v for k, v in value.items() if isinstance(v, torch.Tensor) and isinstance(k, str)}
        if not tensors:
            return None
        for root in self._modules.roots():
            names = {name for name, _ in root.named_parameters(remove_duplicate=False)}
            if names and names <= set(tensors):
                return root
        return None


def _prefix(names: Iterable[str]) -> str | None:
    """What a wrapper has put into one of the names."""
    return next((prefix for prefix in WRAPPERS for name in names if prefix in name), None)


def _address(tensor: torch.Tensor) -> int | None:
    local = local_part(tensor)
    return local.untyped_storage().data_ptr() if local is not None and local.numel() else None


def tensors_in(prefix: str, value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors in nested dictionaries and lists, by their dotted paths."""
    if isinstance(value, torch.Tensor):
        yield prefix, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from tensors_in(f"{prefix}.{key}" if prefix else str(key), item)
    elif isinstance(value, (list, tuple)):
        for number, item in enumerate(value):
            yield from tensors_in(f"{prefix}.{number}", item)


def _is_rng(key: str, tensor: torch.Tensor) -> bool:
    if tensor.dtype is not torch.uint8 or tensor.dim() != 1:
        return False
    return tensor.numel() in RNG_BYTES or "rng" in key.lower()


def _is_loader(value: Any) -> bool:
    names = [cls.__name__ for cls in type(value).__mro__]
    return any(name.endswith(("DataLoader", "Sampler", "Loader")) for name in names)


def _digest(value: Any) -> int | None:
    """A digest of small values that two ranks can be compared by; None where there is nothing to compare."""
    parts = list(_parts(value))
    return zlib.crc32("\n".join(parts).encode()) if parts else None


def _parts(value: Any) -> Iterator[str]:
    if isinstance(value, torch.Tensor):
        if not isinstance(value, DTensor) and value.numel() * value.element_size() <= SMALL:
            yield f"{tuple(value.shape)} {value.dtype} {digest(value)}"
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from (f"{key}: {part}" for part in _parts(item))
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _parts(item)
    elif isinstance(value, (bool, int, str, bytes)):
        yield repr(value)
    elif type(value).__module__ == "numpy" and hasattr(value, "tobytes"):
        yield f"{value.dtype} {zlib.crc32(value.tobytes())}"
