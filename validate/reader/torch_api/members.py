"""Process groups of meshes: along which dimension their ranks lie, and what a save over one of them misses."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ...events import Entry, Form, Parallelised, Sharded
from ..values import Const, Obj, Value, What, single
from ..walk.calls import Call
from ..walk.core import Walk
from .launch import dims_of
from .table import method

_TENSOR_PARALLEL = re.compile(r"^tp$|tensor", re.IGNORECASE)


@method(What.MESH, "get_group")
def _group(call: Call, mesh: Obj) -> Value:
    walk = call.walk
    group = walk.new(What.GROUP)
    names = dims_of(walk, mesh) or ()
    dim = single(call.get(0, "mesh_dim"))
    if isinstance(dim, int) and -len(names) <= dim < len(names):
        dim = names[dim]
    if dim is None and len(names) == 1:
        (dim,) = names
    if dim in names:
        outer = walk.store.get((mesh.id, "%of"))
        walk.store.set((group.id, "%along"), Const(dim))
        walk.store.set((group.id, "%of"), outer if outer is not None else mesh)
    return group


def misses(walk: Walk, group: Value | None, saved: Sequence[Entry] | None, by_rank: bool) -> bool | None:
    """Whether a save over a group leaves out ranks with other parts of the state; None where that is not known.

    `by_rank`: the directory is another one on other ranks, so that each group may well have one of its own.
    """
    if not isinstance(group, Obj) or by_rank or not any(entry.form is Form.SHARDED for entry in saved or ()):
        return None
    along = single(walk.store.get((group.id, "%along")))
    others = set(dims_of(walk, walk.store.get((group.id, "%of"))) or ()) - {along}
    sharding = {sharded.mesh_dims[-1] for sharded in walk.events(Sharded, 0) if sharded.mesh_dims}
    if walk.events(Parallelised, 0):
        sharding |= {dim for dim in others if _TENSOR_PARALLEL.search(dim)}
    return True if others & sharding else None
