"""What weights each rank begins with: digests of samples of them, taken where `fully_shard` divides them.

Afterwards each rank has a part of its own and nothing can be compared. A parameter counts as begun with when the rank's
part of it still holds what it held then.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from .digest import digest, local_part
from .identity import Objects

_SAMPLE = 1024  # elements of a parameter that are looked at


class Beginnings:
    """The weights of modules that are sharded over all ranks and were not called yet."""

    def __init__(self) -> None:
        self._whole = Objects()  # module: name to digest, before it is sharded
        self._parts = Objects()  # module: name to digest of this rank's part, right after

    def sharding(self, module: nn.Module, mesh: Any) -> None:
        """A module is about to be sharded; over some of the ranks only, those need not have the same weights."""
        if mesh is not None and mesh.size() != torch.distributed.get_world_size():
            return
        for m in module.modules():
            found = {name: d for name, p in m._parameters.items() if not isinstance(p, DTensor) and (d := _sampled(p))}
            if found and self._whole.get(m) is None:
                self._whole.set(m, found)

    def sharded(self, module: nn.Module) -> None:
        """It was sharded."""
        for m in module.modules():
            if self._whole.get(m) is not None and self._parts.get(m) is None:
                self._parts.set(m, {name: _sampled(p) for name, p in m._parameters.items() if isinstance(p, DTensor)})

    def kept(self, module: nn.Module) -> dict[str, int]:
        """Digests by FQN of what the parameters began with, where nothing has set them since."""
        found: dict[str, int] = {}
        for prefix, m in module.named_modules():
            whole, parts = self._whole.get(m) or {}, self._parts.get(m) or {}
            for name, p in m._parameters.items():
                if name in whole and parts.get(name) and isinstance(p, DTensor) and _sampled(p) == parts[name]:
                    found[f"{prefix}.{name}" if prefix else name] = whole[name]
        return found


def _sampled(parameter: torch.Tensor | None) -> int | None:
    """The digest of the first elements of this rank's part of a parameter, None where it has none or cannot be read."""
    local = local_part(parameter) if parameter is not None else None
    if local is None or local.numel() == 0:
        return None
    return digest(local.detach().reshape(-1)[:_SAMPLE])
