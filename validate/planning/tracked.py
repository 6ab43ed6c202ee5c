"""Memory of a real model's step, by torch's own `FSDPMemTracker` under fake tensors and a fake process group.

Nothing is allocated and no device is needed: operators run on shapes alone, as the first rank of the whole world. What
CUDA adds (the context, kernels' workspaces, fragmentation of the caching allocator) no tracker of tensors sees.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.utils.checkpoint import checkpoint

from ..errors import UserError
from .build import Built, told, unfaked
from .memory import Memory, Training
from .mesh import Mesh

_GATHERED = ("Unsharded Param", "All Gather", "Unsharded Grad", "Reduce Scatter")
_CATEGORIES = {  # of the tracker: how a plan calls them
    "Sharded Param": "parameters",
    "Sharded Grad": "gradients",
    "OptState": "optimizer",
    "Buffer": "buffers",
    "Activation": "activations",
    "Temp": "temporary",
    "Inputs": "temporary",
    **dict.fromkeys(_GATHERED, "gathered"),
}


@contextmanager
def fake_job(mesh: Mesh) -> Iterator[DeviceMesh]:
    """Rank 0 of a world of that size, whose collectives return at once, under fake tensors."""
    try:
        from torch._subclasses.fake_tensor import FakeTensorMode
        from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker  # noqa: F401  # or too old a torch
        from torch.testing._internal.distributed.fake_pg import FakeStore  # also registers the backend
    except ImportError as error:
        reason = f"torch {torch.__version__} has no memory tracker for FSDP2 ({error})"
        raise UserError(f"{reason}; expected 2.6 or newer") from error
    logging.getLogger("torch.distributed").setLevel(logging.ERROR)
    logging.getLogger("torch._subclasses.fake_tensor").setLevel(logging.CRITICAL)  # what fails is told in one line
    dist.init_process_group("fake", rank=0, world_size=mesh.world, store=FakeStore())
    try:
        ranks = init_device_mesh("cpu", tuple(mesh.sizes.values()), mesh_dim_names=tuple(mesh.sizes))
        with FakeTensorMode(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the model's code, which a plan does not judge
            yield ranks
    finally:
        dist.destroy_process_group()


def track(built: Built, mesh: DeviceMesh, training: Training) -> Memory:
    """Shard the module, make two steps, report the second; inside `fake_job`. Raises UserError for what cannot run.

    `mesh` is of all ranks; over its dim `tp` the module is split already.
    """
    from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker

    module = built.module
    try:
        _shard(built, mesh, training)
        optimizer = _optimizer(module, training.optimizer)
        tracker = FSDPMemTracker(module, optimizer)
        tokens = torch.zeros(training.micro_batch, training.seq_len + 1, dtype=torch.int64)
        tracker.track_inputs((tokens,))
        with tracker:
            _step(built, optimizer, tokens, training, tracker)
        with tracker:
            after_forward, after_backward = _step(built, optimizer, tokens, training, tracker)
        peak = _snapshot(tracker, "peak")
    except Exception as error:
        raise UserError(f"{built.name}: a step under fake tensors raised {told(error)}") from error
    at_peak: dict[str, int] = {}
    for category, name in _CATEGORIES.items():
        at_peak[name] = at_peak.get(name, 0) + peak.get(category, 0)
    return Memory(
        parameters=after_backward["Sharded Param"],
        gradients=after_backward["Sharded Grad"],
        optimizer=after_backward["OptState"],
        buffers=after_backward["Buffer"],
        activations=after_forward["Activation"],
        gathered=at_peak["gathered"],
        peak=peak["Total"],
        where=_where(tracker, peak),
        at_peak=at_peak,
        how="tracked",
    )


def _shard(built: Built, mesh: DeviceMesh, training: Training) -> None:
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    policy: dict[str, Any] = {
        "mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        if training.precision == "bf16"
        else MixedPrecisionPolicy(),
    }
    with unfaked():
        policy["mesh"] = mesh[tuple(dim for dim in mesh.mesh_dim_names or () if dim != "tp")]
        for block in reversed(built.blocks):
            if training.checkpointing:
                block.forward = partial(checkpoint, block.forward, use_reentrant=False)
            fully_shard(block, **policy)
        fully_shard(built.module, **policy)


def _optimizer(module: nn.Module, name: str) -> torch.optim.Optimizer:
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    if name == "adamw":
        return torch.optim.AdamW(parameters)
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, nesterov=True)


def _step(
    built: Built, optimizer: torch.optim.Optimizer, tokens: torch.Tensor, training: Training, tracker: Any
) -> tuple[dict[str, int], dict[str, int]]:
    """A step as generated scripts make it; what there was between forward and backward, and before `zero_grad`."""
    root: Any = built.module  # an FSDPModule, since it is sharded
    for index in range(training.micro_batches):
        tracker.reset_mod_stats()  # which are of one forward
        root.set_requires_gradient_sync(index == training.micro_batches - 1)
        logits = built.logits(built.module, tokens[:, :-1])
        flat = (logits.float() if training.precision == "bf16" else logits).flatten(0, 1)
        loss = nn.functional.cross_entropy(flat, tokens[:, 1:].flatten())
        del flat
        after_forward = _snapshot(tracker, "current")
        torch.autograd.backward(loss)
    for same_mesh in _by_mesh(built.module):
        nn.utils.clip_grad_norm_(same_mesh, 1.0)
    optimizer.step()
    after_backward = _snapshot(tracker, "current")
    optimizer.zero_grad()
    return after_forward, after_backward


def _by_mesh(module: nn.Module) -> Iterable[list[nn.Parameter]]:
    """The parameters of each mesh, over which a norm can be had: what is split over `tp` as well has another."""
    meshes: dict[object, list[nn.Parameter]] = {}
    for parameter in module.parameters():
        meshes.setdefault(getattr(parameter, "device_mesh", None), []).append(parameter)
    return meshes.values()


def _snapshot(tracker: Any, kind: str) -> dict[str, int]:
    """Bytes by category of the tracker, whose names vary in type with torch's version."""
    total: dict[str, int] = {}
    for snapshot in tracker.get_tracker_snapshot(kind).values():
        for category, size in snapshot.items():
            name = str(getattr(category, "value", category))
            total[name] = total.get(name, 0) + int(size)
    return total


def _where(tracker: Any, peak: dict[str, int]) -> str:
    """The innermost FSDP module during whose forward or backward the peak was reached; or what is outside of all."""
    total = peak["Total"]
    stats = [stat for stat in tracker.memory_tracking.values() if total in stat.local_peak.values()]
    if not stats:
        return "the loss" if peak.get("Activation") else "the optimizer's step"
    innermost = max(stats, key=lambda stat: stat.mod_fqn.count("."))
    backward = any(
        sizes.get("Total") == total
        for state, snapshots in innermost.snapshots.items()
        if state.value == "Peak Backward"
        for snapshot in snapshots
        for sizes in snapshot.values()
    )
    _, _, fqn = innermost.mod_fqn.partition(".")
    return f"{'backward' if backward else 'forward'} of {fqn or 'the root'}"
