"""Which meshes fit into a device's memory, those that talk least between nodes first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from ..checkpoint.show import size
from .memory import Memory, Training
from .mesh import Mesh
from .model import FP32, Model

WANTED = 5  # meshes that fit are shown
LOOKED_AT = 24  # candidates at most: each needs a step under fake tensors


@dataclass(frozen=True)
class Proposal:
    """A mesh, with or without activation checkpointing, and its memory.

    `across` and `within` are the bytes that a rank sends between nodes and inside one, for each token that it computes.
    """

    mesh: Mesh
    checkpointing: bool
    memory: Memory
    across: float
    within: float
    reason: str


def propose(
    model: Model,
    world: Mesh,
    training: Training,
    limit: int,
    memory: Callable[[Mesh, Training], Memory],
    *,
    tp: Iterable[int],
) -> tuple[list[Proposal], Proposal | None]:
    """The meshes of so many ranks that fit, best first; and, if none of them does, the one that needs least.

    Activation checkpointing comes after all meshes without, for it computes each forward twice; then less traffic
    between nodes, then less inside a node. Meshes are looked at in this order, until enough of them fit. `tp` are the
    sizes of tensor parallelism to look at.
    """
    found: list[Proposal] = []
    least: Proposal | None = None
    ways = [
        (mesh, replace(training, checkpointing=checkpointing))
        for checkpointing in ((True,) if training.checkpointing else (False, True))
        for mesh in _meshes(model, world, tp)
    ]
    ways.sort(key=lambda way: (way[1].checkpointing, *traffic(model, *way)))
    for mesh, way in _thinned(ways):
        across, within = traffic(model, mesh, way)
        proposal = Proposal(
            mesh, way.checkpointing, memory(mesh, way), across, within, _reason(model, mesh, across, within, way)
        )
        if proposal.memory.peak <= limit:
            found.append(proposal)
        if least is None or proposal.memory.peak < least.memory.peak:
            least = proposal
        if len(found) == WANTED:
            break
    return found, None if found else least


def traffic(model: Model, mesh: Mesh, training: Training) -> tuple[float, float]:
    """Bytes that a rank sends between nodes and within its own in a step, for each token that it computes.

    A ring moves (n - 1)/n of the whole in an all-gather or a reduce-scatter, twice that in an all-reduce. FSDP gathers
    for forward and for backward, and reduces gradients in fp32; replicas all-reduce the shards of gradients; tensor
    parallelism with sequence parallelism gathers and scatters twice a block in forward, and as often in backward
    (Korthikanti et al. 2022, arXiv:2205.05198, section 4.2.2).
    """
    across, within = 0.0, 0.0
    whole = model.numel / mesh.tp
    shards = (mesh.dp_shard - 1) / mesh.dp_shard * whole * (2 * training.element + FP32)
    replicas = 2 * (mesh.dp_replicate - 1) / mesh.dp_replicate * whole / mesh.dp_shard * FP32
    split = 0.0
    if model.transformer is not None:
        times = 12 if training.checkpointing else 8
        stream = training.tokens * model.transformer.hidden * training.element
        split = times * model.transformer.layers * (mesh.tp - 1) / mesh.tp * stream
    for volume, extent in ((split, mesh.tp), (shards, mesh.tp * mesh.dp_shard), (replicas, mesh.world)):
        if extent > mesh.ranks_per_node:
            across += volume
        else:
            within += volume
    tokens = training.tokens / mesh.tp
    return across / tokens, within / tokens


def _meshes(model: Model, world: Mesh, tp: Iterable[int]) -> Iterator[Mesh]:
    """All meshes of the world's ranks; tensor parallelism divides heads and widths, where they are known."""
    ranks, layers = world.world, model.transformer
    for parallel in tp:
        divides = layers is None or not any(
            n % parallel for n in (layers.heads, layers.kv_heads, layers.intermediate, layers.hidden, layers.vocab)
        )
        if ranks % parallel or not divides:
            continue
        rest = ranks // parallel
        for shards in range(1, rest + 1):
            if rest % shards == 0:
                yield Mesh(rest // shards, shards, parallel, world.ranks_per_node)


def _thinned(ways: list[tuple[Mesh, Training]]) -> list[tuple[Mesh, Training]]:
    """At most `LOOKED_AT` of them, from best to last."""
    if len(ways) <= LOOKED_AT:
        return ways
    return [ways[index * (len(ways) - 1) // (LOOKED_AT - 1)] for index in range(LOOKED_AT)]


def _reason(model: Model, mesh: Mesh, across: float, within: float, training: Training) -> str:
    if mesh.nodes == 1:
        what = f"one node; a rank sends {size(round(within))} a token inside it"
    elif across == 0:
        what = f"nothing crosses nodes; {size(round(within))} a token inside them"
    elif mesh.tp * mesh.dp_shard <= mesh.ranks_per_node:
        what = f"shards stay inside a node, and only gradients cross: {size(round(across))} a token"
    else:
        what = f"parameters are gathered across nodes: {size(round(across))} a token"
    if mesh.tp > 1 and model.transformer is None:
        what += ", without what tp sends"
    return what + (", forward is computed twice" if training.checkpointing else "")
