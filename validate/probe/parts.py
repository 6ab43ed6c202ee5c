"""Takes what this rank holds of the training state, a fingerprint a tensor, without gathering anything."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from ..fingerprint import fingerprint
from .digest import block, local_part
from .modules import dtype_name
from .whole import Part

CASTS = (torch.float32, torch.bfloat16, torch.float16)  # what weights are exported in


def part(tensor: torch.Tensor, *, casts: bool = False) -> Part | None:
    """This rank's part of a tensor; None where it cannot be read, or is a summand of what the tensor is."""
    local = local_part(tensor)
    if local is None or (isinstance(tensor, DTensor) and any(p.is_partial() for p in tensor.placements)):
        return None
    offsets, sizes = block(tensor)
    if sizes != tuple(local.shape):
        return None
    with torch.no_grad():
        local = local.detach().cpu().contiguous()
        others = [d for d in CASTS if d != local.dtype] if casts and local.is_floating_point() else []
        sums = [_sum(local.to(dtype), sizes, offsets, tuple(tensor.shape)) for dtype in (local.dtype, *others)]
    return Part(
        dtype=dtype_name(local.dtype),
        shape=tuple(tensor.shape),
        offsets=offsets,
        sizes=sizes,
        sum=sums[0],
        casts=dict(zip(map(dtype_name, others), sums[1:], strict=True)),
    )


def _sum(local: torch.Tensor, sizes: tuple[int, ...], offsets: tuple[int, ...], shape: tuple[int, ...]) -> int:
    data = local.reshape(-1).view(torch.uint8).numpy()
    return fingerprint(data, local.element_size(), sizes=sizes, offsets=offsets, shape=shape)


def parts(tensors: Iterable[tuple[str, torch.Tensor]], *, casts: bool = False) -> dict[str, Any]:
    """The parts of named tensors, as JSON; those that cannot be read are left out."""
    found = ((name, part(tensor, casts=casts)) for name, tensor in tensors)
    return {name: held.as_json() for name, held in found if held is not None}


def plain(state: Mapping[str, Any]) -> dict[str, int]:
    """Digests of the values in a parameter's optimizer state that are no tensors."""
    return {key: zlib.crc32(repr(v).encode()) for key, v in state.items() if not isinstance(v, torch.Tensor)}
