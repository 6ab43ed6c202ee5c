"""What a checkpoint holds, and where in its files: the result of reading its metadata, whatever its format."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from .dtypes import ITEM_SIZES

FEW = 8  # entries of a nested state dict that are totalled one by one
TORCH = "torch"  # a chunk's bytes are what torch.save wrote
RAW = "raw"  # they are the elements


@dataclass(frozen=True, slots=True)
class Place:
    """Bytes in a file of the checkpoint's folder."""

    file: str
    offset: int
    length: int
    encoding: str = TORCH  # TORCH, RAW, or what transformed them on the way to the file

    @property
    def end(self) -> int:
        return self.offset + self.length


@dataclass(frozen=True, slots=True)
class Chunk:
    """A block of a tensor: where it begins in each dimension, its extents, and the place of its bytes, if any.

    `strides` are those of RAW bytes that are not in row-major order, in elements.
    """

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    place: Place | None
    strides: tuple[int, ...] | None = None

    @property
    def elements(self) -> int:
        return math.prod(self.sizes)


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor as the checkpoint describes it, over all ranks."""

    key: str
    dtype: str
    shape: tuple[int, ...]
    chunks: tuple[Chunk, ...]

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def item_size(self) -> int | None:
        """Bytes of an element; None for a dtype that is newer than this program."""
        return ITEM_SIZES.get(self.dtype)

    @property
    def bytes(self) -> int:
        """Bytes of all elements; for a dtype that is not known, those of its chunks in the files."""
        if self.item_size is None:
            return sum(chunk.place.length for chunk in self.chunks if chunk.place)
        return self.elements * self.item_size


@dataclass(frozen=True)
class Contents:
    """All that the metadata of a checkpoint says."""

    format: str  # "DCP" or "safetensors"
    tensors: dict[str, Tensor]
    objects: dict[str, Place | None]  # what is no tensor, pickled by torch.save
    paths: dict[str, tuple[str | int, ...]] = field(default_factory=dict)  # of a key in the nested state dict
    version: str | None = None  # of DCP's metadata
    saved_to: str | None = None  # where it was written
    save_id: str | None = None

    def places(self) -> list[Place]:
        """The place of every chunk and object that has one."""
        chunks = [chunk.place for tensor in self.tensors.values() for chunk in tensor.chunks]
        return [place for place in (*chunks, *self.objects.values()) if place is not None]

    def tops(self) -> dict[str, str]:
        """For each key, the part of the state dict that it is totalled under.

        That is its first part; where that holds a few nested ones, as `train` does `model` and `optimizer`, the
        first two.
        """
        parts = {key: self._parts(key) for key in (*self.tensors, *self.objects)}
        children: dict[str, set[str]] = {}
        for first, *rest in parts.values():
            children.setdefault(first, set()).update(rest[:1])
        nesting = {part[0] for part in parts.values() if len(part) > 2 and len(children[part[0]]) <= FEW}
        return {key: ".".join(part[:2]) if part[0] in nesting else part[0] for key, part in parts.items()}

    def _parts(self, key: str) -> tuple[str, ...]:
        path = self.paths.get(key, ())
        return tuple(map(str, path)) if len(path) > 1 else (key.partition(".")[0],)
