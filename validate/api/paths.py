"""Paths that torch keeps as shims for old programs, and where what they hold is documented."""

from __future__ import annotations

OLD_PATHS = {
    "torch.distributed._composable.fsdp": "torch.distributed.fsdp",
    "torch.distributed._composable.fsdp.fully_shard": "torch.distributed.fsdp",
    "torch.distributed._shard.checkpoint": "torch.distributed.checkpoint",
    "torch.distributed._tensor": "torch.distributed.tensor",
    "torch.distributed._tensor.api": "torch.distributed.tensor",
    "torch.distributed._tensor.device_mesh": "torch.distributed.device_mesh",
    "torch.distributed._tensor.experimental": "torch.distributed.tensor.experimental",
    "torch.distributed._tensor.placement_types": "torch.distributed.tensor",
}
