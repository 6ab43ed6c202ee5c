"""A content hash of a tensor that does not depend on how it was sharded.

It is the SHA-256 of one line, `DTYPE [D0, D1, ...]` and an end of line, and the elements' bytes, little-endian and in
row-major order of the whole tensor. So it is what anyone gets who holds the whole tensor in memory, on any mesh, in any
format and with any size of band; there is nothing to agree on but this paragraph. Hashes of tiles that are combined
could be computed in parallel, but only those who cut the same tiles could compare them. Row-major order costs no extra
reading: see `values`, which brings the bytes in that order from chunks of any shape, holding one band.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from .contents import Tensor
from .folders import Folder
from .values import BAND, bands


def begun(dtype: str, shape: Sequence[int]) -> hashlib._Hash:
    """The hash of a tensor whose elements are still to come."""
    return hashlib.sha256(f"{dtype} {list(shape)}\n".encode())


def digest(folder: Folder, tensor: Tensor, limit: int = BAND) -> str:
    """The hash, in hexadecimal. Raises UserError where the elements cannot be read."""
    sha = begun(tensor.dtype, tensor.shape)
    for band in bands(folder, tensor, limit):
        sha.update(band.words.reshape(-1).view("u1").data)
    return sha.hexdigest()
