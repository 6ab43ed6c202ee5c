"""What a module holds before anything was put into it.

`to_empty` leaves in parameters and buffers whatever was in memory, zeros as often as not. The probe puts NaN there,
which a program that fills them all never gets to see, and looks for it when the module is called first.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from ..events import Unset
from .identity import Objects


class Blanks:
    """The modules that were materialised and not called yet."""

    def __init__(self) -> None:
        self._marked = Objects()

    def mark(self, module: nn.Module, *, recurse: bool) -> None:
        """Fill what `to_empty` has just made."""
        for m in module.modules() if recurse else (module,):
            self._marked.set(m, True)
            for _, tensor in _tensors(m):
                with torch.no_grad(), contextlib.suppress(RuntimeError):  # a dtype that cannot be filled
                    tensor.fill_(math.nan)

    def left(self, module: nn.Module) -> Unset | None:
        """What in the module was not filled since; None where everything was. The module counts as called then."""
        parameters: list[str] = []
        buffers: list[str] = []
        all_parameters = 0
        for prefix, m in module.named_modules():
            all_parameters += sum(p is not None for p in m._parameters.values())
            if self._marked.get(m) is None:
                continue
            self._marked.set(m, None)
            for name, tensor in _tensors(m):
                if tensor.numel() and bool(torch.isnan(tensor).all()):
                    kind = parameters if name in m._parameters else buffers
                    kind.append(f"{prefix}.{name}" if prefix else name)
        if not parameters and not buffers:
            return None
        everything = len(parameters) == all_parameters > 0
        return Unset(parameters=tuple(parameters), buffers=tuple(buffers), everything=everything)


def _tensors(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """The module's own parameters and buffers that can hold NaN: of a sharded one, this rank's part."""
    for name, tensor in (*module._parameters.items(), *module._buffers.items()):
        if tensor is not None and not tensor.is_meta and (tensor.is_floating_point() or tensor.is_complex()):
            yield name, tensor._local_tensor if isinstance(tensor, DTensor) else tensor
