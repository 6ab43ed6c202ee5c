"""Digests of tensors, from the bytes of this rank's part of them."""

from __future__ import annotations

import ctypes
import zlib

import torch
from torch.distributed.tensor import DTensor


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
