"""The elements of a tensor in row-major order, however it was sharded, a band of bounded size at a time.

A band fixes the first dimensions and takes a range of the next, so that it is consecutive in the whole tensor. What a
chunk has of it is then consecutive in the chunk too, and one read brings it, unless the chunk was saved with other
strides (a transposed or channels-last parameter), which is read in as few pieces as fit the band's size.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import UserError
from .archives import Stored, locate
from .contents import Chunk, Tensor
from .folders import Folder
from .pickles import Damaged, shown

if TYPE_CHECKING:
    import numpy as np

BAND = 2**23  # bytes of a tensor that are in memory at a time
SMALL_READ = 2**16  # bytes; reading as much in vain costs less than another read


@dataclass(frozen=True, slots=True)
class Band:
    """A block of a tensor that is consecutive in row-major order, and its elements in that order, as words."""

    offsets: tuple[int, ...]
    words: np.ndarray[Any, Any]


def bands(folder: Folder, tensor: Tensor, limit: int = BAND) -> Iterator[Band]:
    """All bands of a tensor that is whole, in order. Raises UserError where the files are not as the metadata says."""
    item = tensor.item_size
    if item is None:
        raise Damaged(f"{shown(tensor.key)}: the dtype {tensor.dtype} is not known to this program")
    if not tensor.elements:
        return
    np = numpy()
    word = np.dtype({16: "c16"}.get(item, f"u{item}"))
    chunks = [(chunk, locate(folder, tensor, chunk)) for chunk in tensor.chunks if chunk.elements]
    for low, sizes in _blocks(tensor.shape, max(1, limit // item)):
        parts = [
            (stored, tuple(a - b for a, b in zip(start, chunk.offsets, strict=True)), start, extents)
            for chunk, stored in chunks
            if all(extents := _overlap(low, sizes, chunk, start := tuple(map(max, low, chunk.offsets))))
        ]
        filled = sum(math.prod(extents) for *_, extents in parts)
        if filled < math.prod(sizes):
            raise Damaged(f"{shown(tensor.key)}: no chunk holds some elements at {list(low)} and after")
        if len(parts) == 1 and (whole := _read(folder, tensor, *parts[0][:2], sizes, word)) is not None:
            yield Band(low, whole if whole.flags.c_contiguous else whole.copy())
            continue
        words = np.empty(sizes, word)
        for stored, inner, start, extents in parts:
            inside = (..., *(slice(a - b, a - b + n) for a, b, n in zip(start, low, extents, strict=True)))
            _copy(folder, tensor, stored, inner, extents, words[inside])
        yield Band(low, words)


def _overlap(low: tuple[int, ...], sizes: tuple[int, ...], chunk: Chunk, start: tuple[int, ...]) -> tuple[int, ...]:
    """The extents that a block and a chunk have in common from `start` on; 0 in a dimension where they have nothing."""
    both = zip(low, sizes, chunk.offsets, chunk.sizes, start, strict=True)
    return tuple(max(0, min(a + n, b + m) - c) for a, n, b, m, c in both)


def numpy() -> Any:
    """NumPy. Raises UserError when it is missing."""
    try:
        import numpy as np
    except ImportError:
        raise UserError("values are read with NumPy, which is missing: pip install numpy") from None
    return np


def _blocks(shape: tuple[int, ...], limit: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Offsets and sizes of consecutive blocks of at most `limit` elements."""
    cut = 0  # the dimension of which a block takes a range: the first whose inner dimensions fit
    while cut < len(shape) - 1 and math.prod(shape[cut + 1 :]) > limit:
        cut += 1
    if not shape:
        yield (), ()
        return
    inner = shape[cut + 1 :]
    rows = max(1, limit // math.prod(inner))
    for prefix in itertools.product(*(range(n) for n in shape[:cut])):
        for row in range(0, shape[cut], rows):
            yield (*prefix, row, *(0 for _ in inner)), (*(1 for _ in prefix), min(rows, shape[cut] - row), *inner)


def _copy(
    folder: Folder,
    tensor: Tensor,
    stored: Stored,
    low: tuple[int, ...],
    sizes: tuple[int, ...],
    target: np.ndarray[Any, Any],
) -> None:
    """Read a block of a chunk, at `low` in it, into `target`: in halves where much else lies between its elements."""
    found = _read(folder, tensor, stored, low, sizes, target.dtype)
    if found is not None:
        target[...] = found
        return
    longest = max((d for d in range(len(sizes)) if sizes[d] > 1), key=lambda d: stored.strides[d])
    half = sizes[longest] // 2
    for begin, extent in ((0, half), (half, sizes[longest] - half)):
        part = tuple(n + begin if d == longest else n for d, n in enumerate(low))
        extents = tuple(extent if d == longest else n for d, n in enumerate(sizes))
        view = target[tuple(slice(begin, begin + extent) if d == longest else slice(None) for d in range(len(low)))]
        _copy(folder, tensor, stored, part, extents, view)


def _read(
    folder: Folder, tensor: Tensor, stored: Stored, low: tuple[int, ...], sizes: tuple[int, ...], word: Any
) -> np.ndarray[Any, Any] | None:
    """A block of a chunk, at `low` in it, over the bytes of the file; None where much else lies between them."""
    item, strides = stored.item_size, stored.strides
    span = (1 + sum((n - 1) * stride for n, stride in zip(sizes, strides, strict=True))) * item
    if span > max(2 * math.prod(sizes) * item, SMALL_READ):
        return None
    at = stored.offset + sum(n * stride for n, stride in zip(low, strides, strict=True)) * item
    data = folder.read(stored.file, at, span)
    if len(data) < span:
        raise Damaged(f"{folder.where}/{stored.file}: ends within {shown(tensor.key)}")
    found: np.ndarray[Any, Any] = numpy().ndarray(sizes, word, data, strides=tuple(stride * item for stride in strides))
    return found
