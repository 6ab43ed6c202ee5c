"""Who owns what of a model: the modules by the group that `fully_shard` put their parameters in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

COLUMNS = 8  # ranks that have a column each; of more, the least and the most are shown


@dataclass(frozen=True)
class Group:
    """What was sharded by one call; sums over its modules, `bytes` and `optimizer_bytes` by rank."""

    name: str
    modules: list[dict[str, Any]]
    shards: list[str]
    dtypes: list[str]
    elements: int
    bytes: list[int]
    optimizer_bytes: list[int]


def groups(ownership: list[dict[str, Any]]) -> list[Group]:
    """The groups in the order in which the model comes to them."""
    found: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for entry in ownership:
        found.setdefault((entry["model"], *entry["group"]), []).append(entry)
    return [_group(modules) for modules in found.values()]


def _group(modules: list[dict[str, Any]]) -> Group:
    return Group(
        name=", ".join(name or "(root)" for name in modules[0]["group"]) or "not sharded",
        modules=modules,
        shards=sorted({shards for module in modules for shards in module["shards"]}),
        dtypes=sorted({dtype for module in modules for dtype in module["dtypes"]}),
        elements=sum(module["elements"] for module in modules),
        bytes=total(modules, "bytes"),
        optimizer_bytes=total(modules, "optimizer_bytes"),
    )


def total(modules: list[dict[str, Any]], quantity: str) -> list[int]:
    """By rank, what the modules come to together."""
    return [sum(own) for own in zip(*(module[quantity] for module in modules), strict=True)]


def heads(ranks: int) -> list[str]:
    """The heads of the columns that `cells` fills."""
    return [f"rank {rank}" for rank in range(ranks)] if ranks <= COLUMNS else ["least of a rank", "most of a rank"]


def cells(by_rank: list[int]) -> list[str]:
    """What each rank has, or the least and the most that one has, in words."""
    return [size(own) for own in (by_rank if len(by_rank) <= COLUMNS else [min(by_rank), max(by_rank)])]


def size(number: float) -> str:
    """`288 B`, `1.5 KiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024:
            return f"{number:.0f} B" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.1f} TiB"
