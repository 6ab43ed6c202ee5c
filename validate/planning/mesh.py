"""The mesh of a planned run: how many ranks, on which nodes, and what part of a tensor each of them holds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ...templates.mesh import DIMS, parse_mesh
from ..errors import UserError


@dataclass(frozen=True)
class Mesh:
    """Sizes of the mesh dims, and the ranks of a node; ranks of one node are neighbours, `tp` innermost."""

    dp_replicate: int
    dp_shard: int
    tp: int
    ranks_per_node: int

    @property
    def world(self) -> int:
        """The number of ranks."""
        return self.dp_replicate * self.dp_shard * self.tp

    @property
    def nodes(self) -> int:
        """The number of nodes that the ranks take."""
        return math.ceil(self.world / self.ranks_per_node)

    @property
    def sizes(self) -> dict[str, int]:
        """The dims by name; those of size 1, but for `dp_shard`, are left out."""
        return {dim: size for dim in DIMS if (size := int(getattr(self, dim))) > 1 or dim == "dp_shard"}

    def __str__(self) -> str:
        return ",".join(f"{dim}={size}" for dim, size in self.sizes.items())

    def coordinate(self, rank: int) -> tuple[int, int, int]:
        """Where a rank is along `dp_replicate`, `dp_shard` and `tp`."""
        rest, tp = divmod(rank, self.tp)
        return rest // self.dp_shard, rest % self.dp_shard, tp


def resolve_mesh(text: str, nodes: int | None, ranks_per_node: int) -> Mesh:
    """The mesh of an option; -1 fills the nodes, one if none are given. Raises UserError."""
    try:
        sizes = parse_mesh(text)
    except UserError as error:
        raise UserError(f"--mesh {text}: {error}") from error
    known = math.prod(size for size in sizes.values() if size != -1)
    world = (nodes or 1) * ranks_per_node
    if -1 in sizes.values():
        if world % known:
            raise UserError(f"--mesh {text}: {known} does not divide the {world} ranks of --nodes × --ranks-per-node")
        sizes = {dim: world // known if size == -1 else size for dim, size in sizes.items()}
    elif nodes is not None and known != world:
        raise UserError(f"--mesh {text}: has {known} ranks, but --nodes × --ranks-per-node is {world}; leave one out")
    return Mesh(sizes.get("dp_replicate", 1), sizes["dp_shard"], sizes.get("tp", 1), ranks_per_node)


def chunk(length: int, parts: int, index: int) -> tuple[int, int]:
    """Offset and length of one of the parts into which `torch.chunk` cuts: all are equal but the last; some are empty.

    This is how `Shard` places a tensor (torch.distributed.tensor.placement_types.Shard).
    """
    size = math.ceil(length / parts)
    offset = min(length, size * index)
    return offset, min(length, offset + size) - offset


def local_part(
    shape: Sequence[int], split: int | None, mesh: Mesh, rank: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Offsets and lengths of what a rank holds: the part of `tp` along the dim `split`, of that its rows by FSDP."""
    _, shard, tp = mesh.coordinate(rank)
    offsets, lengths = [0] * len(shape), list(shape)
    if split is not None:
        offsets[split], lengths[split] = chunk(shape[split], mesh.tp, tp)
    if shape:
        offset, lengths[0] = chunk(lengths[0], mesh.dp_shard, shard)
        offsets[0] += offset
    return tuple(offsets), tuple(lengths)
