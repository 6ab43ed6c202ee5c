"""What the forwards of a step were given, and what makes losses depend on how a batch is divided among ranks."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import SyncBatchNorm, _BatchNorm

from .digest import digest, local_part, tensors
from .figures import DRAWS, NORMALISES
from .modules import dtype_name, parameters

MOST = 4096  # samples of a call that are told from one another; of more, the batch is one


class Batches:
    """Samples, by digest, that went into the model since the last step."""

    def __init__(self) -> None:
        self._samples = set[int]()
        self._entered: int | None = None  # the generators when the last forward began
        self._draws = False
        self._normalises = dict[int, bool]()  # by the module's id
        self._precision = "float64"

    def entered(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """The program calls a module, to train it."""
        self._samples.update(_samples(tensors((args, kwargs))))
        self._entered = generators()
        if id(module) not in self._normalises:
            norms = [m for m in module.modules() if isinstance(m, _BatchNorm) and not isinstance(m, SyncBatchNorm)]
            self._normalises[id(module)] = any(m.training for m in norms)
        for dtype in _dtypes(module):
            if torch.finfo(dtype).eps > torch.finfo(getattr(torch, self._precision)).eps:
                self._precision = dtype_name(dtype)

    def backward(self) -> None:
        """The backward pass of what was called begins."""
        if self._entered is not None:
            self._draws = self._draws or generators() != self._entered
            self._entered = None

    def take(self) -> tuple[list[int], str | None, str]:
        """Of the step that has ended: its samples, why its loss depends on their division, its least precise dtype."""
        apart = DRAWS if self._draws else NORMALISES if any(self._normalises.values()) else None
        taken = sorted(self._samples), apart, self._precision
        self._samples, self._entered, self._draws = set(), None, False
        return taken


def generators() -> int:
    """A digest of the states of the default generators."""
    states = [torch.get_rng_state()]
    if torch.accelerator.is_available():
        device = torch.accelerator.current_accelerator()
        assert device is not None
        states.append(torch.get_device_module(device).get_rng_state())
    return zlib.crc32(repr([digest(state) for state in states]).encode())


def _dtypes(module: nn.Module) -> Iterator[torch.dtype]:
    held = {(parameter.dtype, parameter.device.type) for parameter in parameters(module)}
    for dtype, device in held:
        if dtype.is_floating_point:
            yield dtype
            if device != "meta" and torch.is_autocast_enabled(device):
                yield torch.get_autocast_dtype(device)


def _samples(given: Iterable[torch.Tensor]) -> Iterator[int]:
    """A digest of each sample: the rows, along the first dimension, of all tensors that have as many."""
    locals_ = [local for tensor in given if (local := local_part(tensor)) is not None and local.dim() > 0]
    if not locals_ or not len(locals_[0]):
        return
    count = len(locals_[0])
    rows = [local.detach().cpu().contiguous() for local in locals_ if len(local) == count]
    for index in range(count) if count <= MOST else (slice(None),):
        yield zlib.crc32(repr([digest(row[index]) for row in rows]).encode())
