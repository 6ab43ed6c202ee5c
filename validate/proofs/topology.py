"""Other numbers of ranks, and other meshes, for a script to run on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import UserError
from ..header import Header, digest
from ..report import plural

if TYPE_CHECKING:
    from .bench import Bench, Subject


DIMS = ("dp_replicate", "dp_shard", "tp")
DEFAULT = "dp_shard=-1"  # the mesh of a generated script that carries none


@dataclass(frozen=True, kw_only=True)
class Topology:
    """How many ranks, and what makes a script arrange them: arguments, or a script that was generated for the mesh.

    `mesh` is None for a script that decides that by itself.
    """

    nproc: int
    args: tuple[str, ...] = ()
    script: Path | None = None
    mesh: str | None = None

    def __str__(self) -> str:
        return plural(self.nproc, "rank") + (f" ({self.mesh})" if self.mesh else "")


def targets(bench: Bench) -> list[Topology]:
    """Where a subject is taken: as asked, or to half as many ranks, and from two to one and to four.

    Raises UserError for a mesh that it cannot be given.
    """
    subject = bench.subject
    if subject.to_mesh is not None:
        return [_to_mesh(bench, subject.to_mesh)]
    if subject.to_nproc is not None:
        return [on(subject, subject.to_nproc)]
    return [on(subject, n) for n in {1: [2], 2: [1, 4]}.get(subject.nproc, [subject.nproc // 2])]


def on(subject: Subject, nproc: int) -> Topology:
    """Another number of ranks, arranged as before as far as they go: the sizes that no longer divide it shrink."""
    if subject.header is None:
        return Topology(nproc=nproc)
    sizes = _own_sizes(subject)
    tp = math.gcd(sizes["tp"], nproc)
    replicate = math.gcd(sizes["dp_replicate"], nproc // tp)
    return _sized(nproc, {"dp_replicate": replicate, "dp_shard": nproc // tp // replicate, "tp": tp})


def _to_mesh(bench: Bench, spec: str) -> Topology:
    from ...templates.mesh import parse_mesh

    subject = bench.subject
    try:
        sizes = parse_mesh(spec)
    except UserError as error:
        raise UserError(f"--to-mesh {spec}: {error}") from error
    fixed = math.prod(size for size in sizes.values() if size != -1)
    nproc = subject.to_nproc or (subject.nproc if -1 in sizes.values() else fixed)
    if nproc % fixed or (-1 not in sizes.values() and nproc != fixed):
        raise UserError(f"--to-mesh {spec}: expected sizes that multiply to {plural(nproc, 'rank')}")
    if subject.header is None:
        raise UserError(
            f"--to-mesh {spec}: {subject.script.name} was not generated and does not tell how it is given a mesh; "
            "expected --to-nproc"
        )
    whole = {dim: nproc // fixed if sizes.get(dim, 1) == -1 else sizes.get(dim, 1) for dim in DIMS}
    topology = _sized(nproc, whole)
    own = parse_mesh(subject.header.answers.get("mesh", DEFAULT))
    if all(size == 1 or dim in own for dim, size in whole.items()):
        return topology
    return replace(topology, script=_generated(bench, subject.header, spec))


def _generated(bench: Bench, header: Header, spec: str) -> Path:
    """The subject as its answers give it for another mesh."""
    from ...templates.options import answer
    from ...templates.render import render

    script = bench.subject.script
    text = script.read_text("utf-8")
    if digest(text) != header.digest:
        raise UserError(
            f"--to-mesh {spec}: {script.name} has no such mesh and was edited, and to generate it anew for one would "
            "lose the edits; expected sizes of the dims that it has"
        )
    if own := [
        name for name in ("model", "block", "dataset") if ":" in header.answers.get(name, "").removeprefix("hf:")
    ]:
        raise UserError(
            f"--to-mesh {spec}: {script.name} has no such mesh, and its {own[0]} is found from its own folder alone; "
            "expected sizes of the dims that it has"
        )
    path = bench.file(script.name)
    path.write_text(render(answer({**header.answers, "mesh": spec})), "utf-8")
    return path


def _own_sizes(subject: Subject) -> dict[str, int]:
    """The sizes of the mesh dims that a generated script has on its own number of ranks."""
    from ...templates.mesh import parse_mesh

    assert subject.header is not None
    sizes = {dim: 1 for dim in DIMS} | parse_mesh(subject.header.answers.get("mesh", DEFAULT))
    for flag, value in zip(subject.args, subject.args[1:], strict=False):
        dim = flag.removeprefix("--").replace("-", "_")
        if dim in sizes and value.lstrip("-").isdecimal():
            sizes[dim] = int(value)
    fixed = math.prod(size for size in sizes.values() if size != -1)
    return {dim: max(1, subject.nproc // fixed) if size == -1 else size for dim, size in sizes.items()}


def _sized(nproc: int, sizes: Mapping[str, int]) -> Topology:
    args = [word for dim, size in sizes.items() for word in (f"--{dim.replace('_', '-')}", str(size))]
    mesh = ",".join(f"{dim}={size}" for dim, size in sizes.items() if size > 1 or dim == "dp_shard")
    return Topology(nproc=nproc, args=tuple(args), mesh=mesh)
