"""What is divided among the ranks by hand."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from ...events import DividedByRank
from ..nodes import last_name, nodes
from ..values import Obj, Sym, Tuple, Union, Value, single

if TYPE_CHECKING:
    from .calls import Call
    from .core import Walk

# Variables that tell the rank, and those of them that tell it within its machine.
LOCAL_RANKS = ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK")
RANKS = ("RANK", "GROUP_RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", *LOCAL_RANKS)

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


def differs(walk: Walk, value: Value) -> bool:
    """Whether a value differs from rank to rank, or is what a library made of one that does."""
    of_what_does = isinstance(value, Obj) and any(walk.fact(outer, "of rank") for outer in value.found_in())
    return of_what_does or of_rank(value)


def origins(walk: Walk, value: Sym, depth: int = 0) -> Iterator[str]:
    """What the numbers are that it was computed from, as far as they differ from rank to rank."""
    parts = walk.parts_of(value.key)
    inner = [part for part in parts if isinstance(part, Sym) and part.rank]
    if not inner and parts and isinstance(parts[0], str):
        yield parts[0]
    for part in inner if depth < 5 else ():
        yield from origins(walk, part, depth + 1)


def within_machine(walk: Walk, value: Value) -> bool:
    """Whether a value differs from rank to rank of a machine, and is the same on another machine."""
    local, todo, seen = False, [value], set[int]()
    while todo:
        current = todo.pop()
        if isinstance(current, Union):
            todo += [v for _, v in current.members]
        if not isinstance(current, Sym) or current.key in seen:
            continue
        seen.add(current.key)
        parts = walk.parts_of(current.key)
        named = parts[1] if len(parts) > 1 else None
        name = single(named) if isinstance(named, Value) else named
        if parts[:1] in (("rank",), ("environment",)) and name in LOCAL_RANKS:
            local = True
        elif current.rank and parts[:1] in (("rank",), ("mesh rank",), ("environment",)):
            return False
        else:
            todo += [part for part in parts if isinstance(part, Value)]
    return local


@functools.lru_cache(maxsize=512)
def on_one_machine(tree: ast.Module) -> bool:
    """Whether a file starts the ranks itself, on its own machine, or asks for as many as that has devices."""
    parts = nodes(tree)
    starts = any(isinstance(n, ast.Call) and last_name(n.func) in ("spawn", "start_processes") for n in parts)
    here = any(isinstance(n, ast.Constant) and n.value in ("localhost", "127.0.0.1") for n in parts)
    asks = (n for n in parts if isinstance(n, ast.Assert))
    return (starts and here) or any(_WORLD.search(ast.unparse(n.test)) for n in asks)


_WORLD = re.compile(r"world_size.*(device_count|LOCAL_WORLD_SIZE|== n\b)")


def cuts(node: ast.expr) -> bool:
    """Whether an expression cuts a tensor into parts; a text is split at another text, or at spaces."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
        return False
    first = node.args[0] if node.args else None
    at_text = isinstance(first, ast.Constant) and isinstance(first.value, str)
    return node.func.attr in ("chunk", "split", "tensor_split") and first is not None and not at_text


def sounds_divided(names: Iterable[str]) -> bool:
    """Whether names tell of ranks or of parts."""
    return any(_DIVIDED.search(name) for name in names)


def called(call: Call, name: str) -> None:
    """Something without source is called: with the rank, it may give each rank a part of its own."""
    named = (name.rpartition(".")[2], *call.kwargs)
    if any(map(of_rank, call.everything())) and any(_DIVIDES.search(n) for n in named):
        call.walk.emit(DividedByRank, call.node)
