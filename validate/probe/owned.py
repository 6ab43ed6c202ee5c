"""What a rank holds of each module of a model: in which group of parameters, cut how, how much of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from .digest import local_part
from .modules import class_name, dtype_name


def owned(models: list[nn.Module], states: Mapping[int, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """An entry for each module with parameters of its own, in the order of the models; one that is tied counts once.

    `states`: the optimizer's state by the parameter's id. Of an entry, `group` has the FQNs of the modules that
    `fully_shard` was called with for it (that of the root is empty; there are none for what was not sharded), `shards`
    is in words how its parameters lie over the meshes, and `bytes` and `optimizer_bytes` are what this rank has.
    """
    entries = []
    seen = set[int]()
    for number, root in enumerate(models):
        groups = _groups(root)
        for prefix, module in root.named_modules():
            own = [p for p in module._parameters.values() if p is not None and id(p) not in seen]
            seen.update(map(id, own))
            if own:
                states_of = [value for p in own for value in states.get(id(p), {}).values()]
                entries.append(
                    {
                        "model": number,
                        "module": prefix,
                        "class": class_name(module),
                        "group": _group(prefix, groups) if any(isinstance(p, DTensor) for p in own) else [],
                        "shards": sorted({_shards(p) for p in own}),
                        "dtypes": sorted({dtype_name(p.dtype) for p in own}),
                        "elements": sum(p.numel() for p in own),
                        "bytes": sum(map(_size, own)),
                        "optimizer_bytes": sum(_size(v) for v in states_of if isinstance(v, torch.Tensor)),
                    }
                )
    return entries


def _groups(root: nn.Module) -> dict[str, list[str]]:
    """By the FQN of each sharded module, the FQNs of those that are in one group with it, itself included."""
    of_state: dict[int, list[str]] = {}
    groups = {}
    for prefix, module in root.named_modules():
        if isinstance(module, FSDPModule):
            groups[prefix] = of_state.setdefault(id(module._get_fsdp_state()), [])
            groups[prefix].append(prefix)
    return groups


def _group(prefix: str, groups: Mapping[str, list[str]]) -> list[str]:
    """That of the nearest of the modules around this one, or itself, that was sharded."""
    while prefix not in groups:
        if not prefix:
            return []
        prefix = prefix.rpartition(".")[0]
    return groups[prefix]


def _shards(parameter: torch.Tensor) -> str:
    """As `dp_replicate=2: Replicate(), dp_shard=2: Shard(0)`."""
    if not isinstance(parameter, DTensor):
        return "whole on each rank"
    mesh = parameter.device_mesh
    names = mesh.mesh_dim_names or tuple(f"dim {dim}" for dim in range(mesh.ndim))
    sizes = [mesh.size(dim) for dim in range(mesh.ndim)]
    placed = map(_placed, parameter.placements)
    return ", ".join(f"{name}={size}: {how}" for name, size, how in zip(names, sizes, placed, strict=True))


def _placed(placement: Any) -> str:
    name = type(placement).__name__.lstrip("_")  # _StridedShard is private to torch
    return f"{name}({placement.dim})" if hasattr(placement, "dim") else f"{name}()"


def _size(tensor: torch.Tensor) -> int:
    """Bytes of this rank's part; 0 where there is none."""
    local = local_part(tensor)
    return 0 if local is None else local.numel() * local.element_size()
