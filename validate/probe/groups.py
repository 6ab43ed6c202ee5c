"""Hooks on the start and the end: process groups, meshes, devices, the program's own collectives, signals."""

from __future__ import annotations

import signal
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import device_mesh, distributed_c10d
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from ..events import (
    CollectiveCalled,
    DeviceSet,
    GroupCreated,
    GroupDestroyed,
    GroupInitialised,
    MeshCreated,
    Ref,
    SignalHandled,
)
from .digest import tensors
from .observer import Call, Handler, Observer
from .reductions import Reductions

COLLECTIVES = (
    "all_gather",
    "all_gather_coalesced",
    "all_gather_into_tensor",
    "all_gather_object",
    "all_reduce",
    "all_reduce_coalesced",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "broadcast",
    "broadcast_object_list",
    "gather",
    "gather_object",
    "monitored_barrier",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "scatter",
    "scatter_object_list",
)


def install(observer: Observer, reductions: Reductions) -> None:
    """Hook what this module is about."""

    def initialised(call: Call) -> Handler:
        backend = call["backend"]
        observer.emit(
            GroupInitialised,
            call.frame,
            backend=None if backend is None else str(backend),
            device_bound=call["device_id"] is not None,
        )
        yield

    def destroyed(call: Call) -> Handler:
        if call["group"] in (None, dist.group.WORLD):
            observer.emit(GroupDestroyed, call.frame)
        yield

    def grouped(call: Call) -> Handler:
        ref = observer.identities.new("group")
        backend = call["backend"]
        order = observer.emit(
            GroupCreated,
            call.frame,
            group=ref,
            backend=None if backend is None else str(backend),
            inherits=backend is None,
            everyone=call["ranks"] is None,
        )
        observer.entered(order)
        result = yield
        observer.returned(order)
        if isinstance(result, dist.ProcessGroup):
            observer.identities.bind(result, ref)
            note_members(observer, result, ref)

    def meshed(call: Call) -> Handler:
        names = call["mesh_dim_names"]
        ref = observer.identities.new("mesh")
        order = observer.emit(
            MeshCreated,
            call.frame,
            mesh=ref,
            device_type=call["device_type"],
            shape=tuple(int(size) for size in call["mesh_shape"]),
            dims=None if names is None else tuple(names),
        )
        observer.entered(order)
        result = yield
        observer.returned(order)
        observer.identities.bind(result, ref)

    def mesh_built(call: Call) -> Handler:
        names = call["mesh_dim_names"]
        mesh = call["mesh"]
        ref = observer.identities.of(call.args[0], "mesh")
        yield from observer.calling(
            MeshCreated,
            call.frame,
            mesh=ref,
            device_type=call["device_type"],
            shape=None if mesh is None else tuple(torch.as_tensor(mesh).shape),
            dims=None if names is None else tuple(names),
        )

    def device_set(call: Call) -> Handler:
        observer.emit(DeviceSet, call.frame)
        yield

    def handled(call: Call) -> Handler:
        observer.emit(SignalHandled, call.frame, signum=int(call.args[0]) if call.args else None)
        yield

    def collective(op: str) -> Any:
        def called(call: Call) -> Handler:
            tensor = call["tensor"] if op in ("all_reduce", "reduce") else None
            of = reductions.new(tensor)
            group = group_ref(observer, call["group"])
            yield from observer.calling(CollectiveCalled, call.frame, op=op, group=group, of=of)
            reductions.done(tensor, of)

        return called

    def gathered(call: Call) -> Handler:
        yield from observer.calling(CollectiveCalled, call.frame, op="full_tensor")

    spaces = [dist, distributed_c10d]
    observer.wrap(spaces, "init_process_group", initialised)
    observer.wrap(spaces, "destroy_process_group", destroyed)
    observer.wrap(spaces, "new_group", grouped)
    observer.wrap([device_mesh, dist], "init_device_mesh", meshed)
    observer.wrap([DeviceMesh], "__init__", mesh_built)
    for op in COLLECTIVES:
        observer.wrap(spaces, op, collective(op))
    observer.wrap([DTensor], "full_tensor", gathered)
    observer.wrap([torch.cuda], "set_device", device_set)
    if hasattr(torch, "accelerator"):
        observer.wrap([torch.accelerator], "set_device_index", device_set)
        observer.wrap([torch.accelerator], "set_device_idx", device_set)
    observer.wrap([signal], "signal", handled)


def group_ref(observer: Observer, group: Any) -> Ref | None:
    """The identity of a process group that was passed, None for the default one."""
    if group is None or group is dist.group.WORLD or not isinstance(group, dist.ProcessGroup):
        return None
    if (known := observer.identities.known(group)) is not None:
        return known
    ref = observer.identities.of(group, "group")
    note_members(observer, group, ref)
    return ref


def misses(state: Any, group: Any) -> bool | None:
    """Whether ranks that are not in a group hold other parts of the DTensors in a state dict that is saved over it."""
    if not isinstance(group, dist.ProcessGroup):
        return None
    members = set(dist.get_process_group_ranks(group))
    return any(not _holders(tensor) <= members for tensor in tensors(state) if isinstance(tensor, DTensor))


def _holders(tensor: DTensor) -> set[int]:
    """The ranks that hold one copy of a tensor together: this one, and those that have its other shards."""
    mesh, here = tensor.device_mesh, tensor.device_mesh.get_coordinate()
    if here is None:
        return set()
    where = tuple(slice(None) if p.is_shard() else at for p, at in zip(tensor.placements, here, strict=True))
    return set(mesh.mesh[where].flatten().tolist())


def note_members(observer: Observer, group: dist.ProcessGroup, ref: Ref) -> None:
    """Note a group that not all ranks belong to: what they do in it, the others need not."""
    if dist.get_world_size(group) < dist.get_world_size():
        observer.recorder.write({"note": "group", "id": ref.id})
