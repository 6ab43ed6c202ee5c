"""The state that a save was given, as digests that can be looked up in the checkpoint, however it is sharded there."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.checkpoint._nested_dict import flatten_state_dict

from .digest import block, digest

PLAIN = (bool, int, float, str, type(None))


def snapshot(state: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """By DCP's key, what this rank has of it.

    Of a tensor `crc`, the CRC-32 of the elements in a block, and its `offsets` and `sizes` in the whole tensor; of a
    plain value `value`, its repr. What is neither is left out.
    """
    found: dict[str, dict[str, Any]] = {}
    for key, value in flatten_state_dict(state)[0].items():
        if isinstance(value, torch.Tensor):
            if (crc := digest(value)) is not None and value.numel():
                offsets, sizes = block(value)
                if 0 not in sizes:
                    found[key] = {"crc": crc, "offsets": offsets, "sizes": sizes}
        elif isinstance(value, PLAIN):
            found[key] = {"value": repr(value)}
    return found
