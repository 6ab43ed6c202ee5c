"""The tensors in nested values, this rank's part of a tensor and its place in the whole, and digests of its bytes."""

from __future__ import annotations

import ctypes
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset


def local_part(tensor: torch.Tensor) -> torch.Tensor | None:
    """This rank's part of a tensor; None where there is no memory behind it to read.

    FSDP frees the storage of gathered parameters under the tensors that still refer to it; reading one ends the
    process.
    """
    with torch.no_grad():
        local = tensor.to_local() if isinstance(tensor, DTensor) else tensor.detach()
    if local.device.type == "meta" or local.layout is not torch.strided or type(local) not in _READABLE:
        return None
    if local.numel() == 0:
        return local
    reach = local.storage_offset() + sum((n - 1) * s for n, s in zip(local.shape, local.stride(), strict=True)) + 1
    return local if local.untyped_storage().nbytes() >= reach * local.element_size() else None


_READABLE = (torch.Tensor, torch.nn.Parameter)


def block(tensor: torch.Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Where this rank's part of a tensor lies in the whole: its offsets, and its sizes."""
    if not isinstance(tensor, DTensor):
        return (0,) * tensor.dim(), tuple(tensor.shape)
    sizes, offsets = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    return tuple(offsets), tuple(sizes)


def tensors(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in nested mappings, lists and tuples."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (Mapping, list, tuple)):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from tensors(part)


def digest(tensor: torch.Tensor) -> int | None:
    """CRC-32 of this rank's part of a tensor, None where it cannot be read."""
    local = local_part(tensor)
    if local is None:
        return None
    with torch.no_grad():
        local = local.detach().cpu().contiguous()
    if local.numel() == 0:
        return 0
    size = local.numel() * local.element_size()
    return zlib.crc32((ctypes.c_char * size).from_address(local.data_ptr()))
