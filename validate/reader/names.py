"""Canonical names: one name for each thing of torch, whatever path it was imported by."""

from __future__ import annotations

import functools
import re

# Where torch keeps a thing -> the public name that the tables in `torch_api` use. Longest match first.
_MOVED = {
    "torch.distributed._composable.fsdp": "torch.distributed.fsdp",
    "torch.distributed._composable.replicate": "torch.distributed._composable.replicate",
    "torch.distributed.fsdp._fully_shard": "torch.distributed.fsdp",
    "torch.distributed.fsdp.fully_sharded_data_parallel": "torch.distributed.fsdp",
    "torch.distributed.checkpoint.state_dict_saver": "torch.distributed.checkpoint",
    "torch.distributed.checkpoint.state_dict_loader": "torch.distributed.checkpoint",
    "torch.distributed.distributed_c10d": "torch.distributed",
    "torch.distributed.device_mesh": "torch.distributed",
    "torch.distributed.tensor.device_mesh": "torch.distributed",
    "torch.distributed._tensor": "torch.distributed.tensor",
    "torch.nn.modules.module": "torch.nn",
    "torch.nn.parallel.distributed": "torch.nn.parallel",
    "torch.nn.utils.clip_grad": "torch.nn.utils",
    "torch.optim.optimizer": "torch.optim",
    "torchdata.stateful_dataloader.stateful_dataloader": "torchdata.stateful_dataloader",
}
_LONGEST_FIRST = sorted(_MOVED, key=len, reverse=True)
_PATTERNS = (
    (re.compile(r"^torch\.nn\.modules\.\w+\.([A-Z]\w*)"), r"torch.nn.\1"),
    (re.compile(r"^torch\.optim\.(?!lr_scheduler|swa_utils)\w+\.([A-Z]\w*)"), r"torch.optim.\1"),
    (re.compile(r"^torch\.distributed\.fsdp\._fully_shard\.\w+\.(\w+)"), r"torch.distributed.fsdp.\1"),
    (re.compile(r"^torch\.distributed\.tensor\.(init_device_mesh|DeviceMesh)$"), r"torch.distributed.\1"),
    (re.compile(r"^torch\.distributed\._composable\.fsdp\.\w+\.(\w+)"), r"torch.distributed.fsdp.\1"),
)


@functools.lru_cache(maxsize=4096)
def canonical(name: str) -> str:
    """The public name of something of a library, from any dotted name that leads to it."""
    if not name.startswith("torch"):
        return name
    for pattern, replacement in _PATTERNS:
        if pattern.match(name):
            return pattern.sub(replacement, name)
    for old in _LONGEST_FIRST:
        if name.startswith(old + "."):
            return _MOVED[old] + name[len(old) :]
    return name
