"""The mesh: how the ranks of a job are arranged."""

from __future__ import annotations

import math
import re

from ..validate.errors import UserError

DIMS = ("dp_replicate", "dp_shard", "tp")
"""The names of mesh dims, in the order in which a mesh has them."""


def parse_mesh(text: str) -> dict[str, int]:
    """The sizes of the mesh dims, by name; -1 fills the world. Raises UserError for what is not a mesh."""
    sizes: dict[str, int] = {}
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\w+)\s*=\s*(-?[0-9]{1,9})\s*", part)
        if match is None:
            raise UserError(f"`{part}` is not a mesh dim; expected dim=size by comma, such as dp_shard=-1")
        dim, size = match[1], int(match[2])
        if dim not in DIMS:
            raise UserError(f"there is no mesh dim `{dim}`; expected some of {', '.join(DIMS)}")
        if dim in sizes:
            raise UserError(f"`{dim}` is there twice; expected each mesh dim once")
        if size != -1 and size < 1:
            raise UserError(f"`{dim}` has size {size}; expected 1 or more, or -1 to fill the world")
        sizes[dim] = size
    if list(sizes) != sorted(sizes, key=DIMS.index):
        raise UserError(f"the dims are in the order {', '.join(sizes)}; expected the order {', '.join(DIMS)}")
    if sum(size == -1 for size in sizes.values()) > 1:
        raise UserError("several dims have size -1; expected one at most to fill the world")
    if "dp_shard" not in sizes:
        raise UserError("there is no dp_shard, the dim that FSDP2 shards over; expected dp_shard=SIZE or dp_shard=-1")
    return sizes


def example_ranks(sizes: dict[str, int]) -> int:
    """How many ranks a mesh stands for in examples of commands: a dim that fills the world has size 2 there."""
    return math.prod(2 if size == -1 else size for size in sizes.values())
