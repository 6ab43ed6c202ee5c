"""What is divided among the ranks by hand."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ...events import DividedByRank
from ..values import Sym, Tuple, Union, Value

if TYPE_CHECKING:
    from .calls import Call

# How programs call what looks after the part of one rank.
_DIVIDED = re.compile(r"rank|world|shard|replica|partition|distribut|worker|dp_|_dp|mesh|parallel", re.IGNORECASE)
_DIVIDES = re.compile(
    r"shard|split|sampl|data|load|read|partition|chunk|slice|range|subset|select|skip|batch|seed", re.IGNORECASE
)


def of_rank(value: Value) -> bool:
    """Whether a value, or an element of it, differs from rank to rank."""
    if isinstance(value, Union):
        return any(of_rank(v) for _, v in value.members)
    return (isinstance(value, Sym) and value.rank) or (isinstance(value, Tuple) and any(map(of_rank, value.items)))


def sounds_divided(names: Iterable[str]) -> bool:
    """Whether names tell of ranks or of parts."""
    return any(_DIVIDED.search(name) for name in names)


def called(call: Call, name: str) -> None:
    """Something without source is called: with the rank, it may give each rank a part of its own."""
    named = (name.rpartition(".")[2], *call.kwargs)
    if any(map(of_rank, call.everything())) and any(_DIVIDES.search(n) for n in named):
        call.walk.emit(DividedByRank, call.node)
