"""A plan as people and programs read it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ..checkpoint.pickles import shown
from ..checkpoint.show import size
from ..quantities import shown_seconds
from ..report import plural
from .checkpoint import Checkpoint
from .fits import Proposal
from .interval import Interval
from .memory import Memory, Training
from .mesh import Mesh
from .model import Model
from .scale import Planning

HOW = {
    "tracked": "torch's FSDPMemTracker, one step under fake tensors",
    "formulas": "formulas; sharded state is exact, the rest an estimate",
}


@dataclass(frozen=True)
class Saving:
    """A way of saving: the host memory that it adds on a rank and why, what training stops for, and how often to save.

    `stall` is None where no bandwidth is known, `interval` where no time between failures is.
    """

    mode: str
    host: int
    why: str
    stall: float | None
    interval: Interval | None


@dataclass(frozen=True)
class Plan:
    """All that was planned; None is what was not asked for. `limit` is that of `fits`, `seconds` the time of a save."""

    model: Model
    mesh: Mesh
    training: Training
    memory: Memory
    checkpoint: Checkpoint
    savings: tuple[Saving, ...]
    bandwidth: int | None
    seconds: float | None
    limit: int | None
    fitting: tuple[Proposal, ...] | None
    least: Proposal | None
    planning: tuple[Planning, ...] | None


def as_json(plan: Plan) -> dict[str, Any]:
    """The document of `--format json`; bytes and seconds."""
    return {
        "version": 1,
        "model": {"name": plan.model.name, "parameters": plan.model.numel, "tensors": len(plan.model.parameters)},
        "mesh": _mesh(plan.mesh),
        "training": asdict(plan.training),
        "memory": asdict(plan.memory),
        "checkpoint": {
            "bytes": plan.checkpoint.bytes,
            "metadata": plan.checkpoint.metadata,
            "files": plan.checkpoint.files,
            "rank": plan.checkpoint.rank,
            "node": plan.checkpoint.node,
            "bandwidth": plan.bandwidth,
            "seconds": plan.seconds,
        },
        "savings": [asdict(saving) for saving in plan.savings],
        "fits": None
        if plan.limit is None
        else {
            "limit": plan.limit,
            "meshes": [_proposal(proposal) for proposal in plan.fitting or ()],
            "least": None if plan.least is None else _proposal(plan.least),
        },
        "planning": None
        if plan.planning is None
        else [asdict(planning) | {"seconds": planning.seconds} for planning in plan.planning],
    }


def as_text(plan: Plan) -> list[str]:
    """The plan in tables."""
    memory = plan.memory
    lines = [
        *heading(plan),
        "",
        f"memory of a rank (by {HOW[memory.how]})",
    ]
    rows = {
        "parameters": memory.parameters,
        "gradients": memory.gradients,
        "optimizer state": memory.optimizer,
        "buffers": memory.buffers,
        "activations": memory.activations,
        "gathered": memory.gathered,
        "peak": memory.peak,
    }
    lines += _table([[name, size(number)] for name, number in rows.items()])
    parts = ", ".join(f"{name} {size(number)}" for name, number in memory.at_peak.items() if number)
    lines += [f"  the peak is in {memory.where}: {parts}", ""]
    saved = plan.checkpoint
    lines += [
        "checkpoint",
        *_table(
            [
                ["total", size(saved.bytes), f"in {plural(saved.files, 'file')}, .metadata of {size(saved.metadata)}"],
                ["a rank writes", size(saved.rank), ""],
                ["a node writes", size(saved.node), _rate(plan)],
            ]
        ),
        "",
        "saving",
        *_savings(plan.savings),
    ]
    if plan.limit is not None:
        lines += ["", *_fits(plan.limit, plan.fitting or (), plan.least)]
    if plan.planning is not None:
        lines += ["", *_planning(plan.planning)]
    return lines


def heading(plan: Plan) -> list[str]:
    """What is planned: a line of the model, and one of the run."""
    model, mesh, training = plan.model, plan.mesh, plan.training
    return [
        f"{shown(model.name)}: {_count(model.numel)} parameters in {plural(len(model.parameters), 'tensor')}",
        f"{mesh}: {plural(mesh.world, 'rank')} on {plural(mesh.nodes, 'node')}; {training.precision}, "
        f"{training.optimizer}, {_batches(training)} × {training.seq_len} tokens, activation "
        f"checkpointing {'full' if training.checkpointing else 'none'}",
    ]


def _batches(training: Training) -> str:
    several = f"{training.micro_batches} micro-batches of" if training.micro_batches > 1 else "micro-batch"
    return f"{several} {training.micro_batch}"


def _rate(plan: Plan) -> str:
    if plan.bandwidth is None or plan.seconds is None:
        return ""
    return f"in {shown_seconds(plan.seconds)} at {size(plan.bandwidth)}/s"


def _savings(savings: Sequence[Saving]) -> list[str]:
    head = ["", "host memory of a rank", "training stops for", "by Young", "by Daly", "save every", "time lost"]
    rows = [head]
    for saving in savings:
        stall = "" if saving.stall is None else shown_seconds(saving.stall)
        found = saving.interval
        timed = ["", "", "", ""]
        if found is not None:
            timed = [*map(shown_seconds, (found.young, found.daly, found.every)), f"{found.lost:.2%}"]
        rows.append([saving.mode, size(saving.host), stall, *timed])
    used = [column for column in range(len(head)) if column == 0 or any(row[column] for row in rows[1:])]
    return [*_table([[row[column] for column in used] for row in rows]), *(f"  {s.mode}: {s.why}" for s in savings)]


def _fits(limit: int, fitting: Sequence[Proposal], least: Proposal | None) -> list[str]:
    if not fitting:
        assert least is not None  # a world has at least one mesh
        return [f"nothing that was looked at fits into {size(limit)}; least is {_fitting(least)}"]
    return [f"fits into {size(limit)}, best first", *(f"  {_fitting(proposal)}" for proposal in fitting)]


def _fitting(proposal: Proposal) -> str:
    full = ", activation checkpointing full" if proposal.checkpointing else ""
    return f"{proposal.mesh}{full}: peak {size(proposal.memory.peak)} ({proposal.reason})"


def _planning(rows: Sequence[Planning]) -> list[str]:
    head = [
        "ranks",
        "items",
        "written",
        "plans received",
        "coordinator",
        "with cached plans",
        ".metadata",
        "to read it",
        "",
    ]
    table = [head]
    for row in rows:
        cached = "" if row.cached_seconds is None else shown_seconds(row.cached_seconds)
        table.append(
            [
                str(row.world),
                _count(row.planned),
                _count(row.written),
                size(row.received),
                shown_seconds(row.seconds),
                cached,
                size(row.metadata),
                shown_seconds(row.read_seconds),
                "measured" if row.measured else "extrapolated",
            ]
        )
    largest = rows[-1]
    steps = {
        "receiving plans": largest.receive_seconds,
        "the global plan": largest.plan_seconds,
        "the metadata": largest.finish_seconds,
    }
    most = max(steps, key=lambda name: steps[name])
    return [
        "planning of a save, by rank 0 while all wait (this machine's seconds, without the network's)",
        *_table(table),
        f"  at {largest.world} ranks most of it is {most} ({steps[most] / largest.seconds:.0%})",
    ]


def _mesh(mesh: Mesh) -> dict[str, Any]:
    return {**mesh.sizes, "ranks": mesh.world, "nodes": mesh.nodes}


def _proposal(proposal: Proposal) -> dict[str, Any]:
    return {
        "mesh": _mesh(proposal.mesh),
        "checkpointing": proposal.checkpointing,
        "peak": proposal.memory.peak,
        "how": proposal.memory.how,
        "across_bytes_per_token": proposal.across,
        "within_bytes_per_token": proposal.within,
        "reason": proposal.reason,
    }


def _count(number: int) -> str:
    """`8.03 B` (billion), `124 M`, `4096`."""
    units: Mapping[str, int] = {"B": 10**9, "M": 10**6, "k": 10**3}
    for unit, scale in units.items():
        if number >= 10 * scale or (unit != "k" and number >= scale):
            return f"{number / scale:.3g} {unit}"
    return str(number)


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns of equal width, all to the left."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  " + "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]
