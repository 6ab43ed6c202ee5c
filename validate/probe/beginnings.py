"""What weights each rank begins with: digests of samples of them, taken where they are divided among the ranks.

That is in `fully_shard`, or where a sharded model is given whole weights. Afterwards each rank has a part of its own,
and nothing can be compared. A parameter counts as begun with when the rank's part of it still holds what it held then.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from ..wrappers import plain_name
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

    @staticmethod
    def brought(state: Mapping[str, object]) -> dict[str, int]:
        """Digests by FQN of whole tensors that this rank has; before a module takes them, which may change it."""
        tensors = {plain_name(str(name)): tensor for name, tensor in state.items() if isinstance(tensor, torch.Tensor)}
        return {name: d for name, tensor in tensors.items() if (d := _sampled(tensor)) is not None}

    def given(self, module: nn.Module, whole: Mapping[str, int]) -> None:
        """A sharded module has taken its parts of the tensors with these digests by FQN."""
        for prefix, m in module.named_modules():
            names = {name: plain_name(f"{prefix}.{name}" if prefix else name) for name in m._parameters}
            mine = {n: whole[fqn] for n, fqn in names.items() if fqn in whole and _among_all(m._parameters[n])}
            if mine:
                self._whole.set(m, mine)
                self._parts.set(m, {name: _sampled(m._parameters[name]) for name in mine})

    def kept(self, module: nn.Module) -> dict[str, int]:
        """Digests by FQN of what the parameters began with, where nothing has set them since."""
        found: dict[str, int] = {}
        for prefix, m in module.named_modules():
            whole, parts = self._whole.get(m) or {}, self._parts.get(m) or {}
            for name, p in m._parameters.items():
                if name in whole and parts.get(name) and isinstance(p, DTensor) and _sampled(p) == parts[name]:
                    found[f"{prefix}.{name}" if prefix else name] = whole[name]
        return found


def _among_all(parameter: torch.Tensor | None) -> bool:
    """Whether a parameter is divided among all ranks; those of a stage of a pipeline have weights of their own."""
    return isinstance(parameter, DTensor) and parameter.device_mesh.size() == torch.distributed.get_world_size()


def _sampled(parameter: torch.Tensor | None) -> int | None:
    """The digest of the first elements of this rank's part of a parameter, None where it has none or cannot be read."""
    local = local_part(parameter) if parameter is not None else None
    if local is None or local.numel() == 0:
        return None
    return digest(local.detach().reshape(-1)[:_SAMPLE])
