"""A fingerprint of a tensor that does not depend on how it was cut: that of the whole is the sum of its parts'.

Each element is hashed together with its place in the whole tensor, and the hashes are added modulo 2^64. So ranks can
each take that of their own shards, nobody needs the whole tensor, and a file that is read a band at a time gives the
same. It tells tensors apart that differ by accident; it is no protection against one that was made to fit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .checkpoint.values import numpy

if TYPE_CHECKING:
    import numpy as np

MASK = 2**64 - 1
BLOCK = 2**16  # elements hashed at a time, so that what is computed stays in the caches
_STEP, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB  # of splitmix64


def fingerprint(
    data: np.ndarray[Any, Any], item_size: int, *, sizes: Sequence[int], offsets: Sequence[int], shape: Sequence[int]
) -> int:
    """Of a block of a tensor of `shape`: `data` are its bytes in row-major order, `offsets` where it begins there."""
    np = numpy()
    if item_size == 16:  # of complex numbers, in halves
        item_size, sizes, offsets, shape = 8, (*sizes, 2), (*offsets, 0), (*shape, 2)
    words = data.reshape(-1).view(f"u{item_size}")
    inner = math.prod(shape[1:])
    in_one_piece = list(sizes[1:]) == list(shape[1:])
    total = 0
    for start in range(0, words.size, BLOCK):
        block = words[start : start + BLOCK].astype(np.uint64)
        index = np.arange(start, start + block.size, dtype=np.uint64)
        if in_one_piece:
            index += np.uint64(offsets[0] * inner if shape else 0)
        else:
            index = _in_whole(index, sizes, offsets, shape)
        total += int(_mixed(index, block).sum(dtype=np.uint64))
    return total & MASK


def _in_whole(index: np.ndarray[Any, Any], sizes: Sequence[int], offsets: Sequence[int], shape: Sequence[int]) -> Any:
    """Places in a block as places in the whole."""
    np = numpy()
    found = np.zeros_like(index)
    stride = 1
    for size, offset, extent in zip(reversed(sizes), reversed(offsets), reversed(shape), strict=True):
        found += (index % np.uint64(size) + np.uint64(offset)) * np.uint64(stride)
        index = index // np.uint64(size)
        stride *= extent
    return found


def _mixed(index: np.ndarray[Any, Any], words: np.ndarray[Any, Any]) -> Any:
    np = numpy()
    z = (index + np.uint64(1)) * np.uint64(_STEP) + words
    z = (z ^ (z >> np.uint64(30))) * np.uint64(_FIRST)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(_SECOND)
    return z ^ (z >> np.uint64(31))
