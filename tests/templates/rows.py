"""Which combinations of the generator's options the tests take: covering arrays of their examples, and samples."""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator

from pytorch_fsdp2_dcp.templates.mesh import parse_mesh
from pytorch_fsdp2_dcp.templates.options import OPTIONS, answer
from pytorch_fsdp2_dcp.validate.errors import UserError

from ..combinations import Covering, Row, cover

TABLE = {option.name: tuple(dict.fromkeys((option.default, *option.examples))) for option in OPTIONS}
DEAR = {
    ("compile", "on"),  # a C++ compiler runs for each new graph
}


def works(row: Row) -> bool:
    """Whether the generator takes this combination."""
    try:
        answer(row)
    except UserError:
        return False
    return True


@functools.cache
def covering(strength: int) -> Covering:
    """Rows that hold every pair (2) or triple (3) of values that works."""
    return cover(TABLE, works, strength, dear=DEAR)


@functools.cache
def to_run() -> list[Row]:
    """Rows that hold every pair of values, with one mesh for each set of dims: sizes are but the defaults of flags."""
    by_dims = {tuple(parse_mesh(mesh)): mesh for mesh in reversed(TABLE["mesh"])}
    return cover(TABLE | {"mesh": tuple(reversed(by_dims.values()))}, works, 2, dear=DEAR).rows


def sample(seed: int) -> Iterator[Row]:
    """Combinations that work, drawn at random from all, without end."""
    dice = random.Random(seed)
    while True:
        row = {name: dice.choice(values) for name, values in TABLE.items()}
        if works(row):
            yield row


def spelled(row: Row) -> str:
    """The options of a row that are not at their defaults, as `generate` takes them."""
    chosen = [f"{option.flag} {row[option.name]}" for option in OPTIONS if row[option.name] != option.default]
    return " ".join(chosen) or "defaults"
