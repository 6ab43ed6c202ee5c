"""The state that a run saves, as DCP plans it: an entry a key, and the write items of each rank."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import SavePlan, TensorWriteData, WriteItem, WriteItemType

from .mesh import Mesh, local_part
from .model import STATES, Model


@dataclass(frozen=True)
class Entry:
    """A key of the checkpoint; `sharded` if ranks hold parts, else all hold the whole, and one writes it.

    An object is saved as bytes, and has no shape.
    """

    path: tuple[str, ...]
    shape: tuple[int, ...] | None
    element: int = 4
    split: int | None = None
    sharded: bool = True

    @property
    def key(self) -> str:
        """The key as DCP flattens it."""
        return ".".join(self.path)

    @property
    def bytes(self) -> int:
        """Bytes of all elements."""
        return 0 if self.shape is None else self.element * math.prod(self.shape)


def entries(model: Model, optimizer: str) -> list[Entry]:
    """What `get_state_dict` makes of model and optimizer: a tied parameter under each name in the model, once after."""
    found = [
        Entry(("model", name), parameter.shape, split=parameter.split)
        for parameter in model.parameters
        for name in parameter.names
    ]
    found += [Entry(("model", b.name), (b.bytes,), 1, sharded=False) for b in model.buffers if b.persistent]
    for parameter in model.parameters:
        if parameter.trained:
            path = ("optimizer", "state", parameter.names[0])
            found += [Entry((*path, state), parameter.shape, split=parameter.split) for state in STATES[optimizer]]
            if optimizer == "adamw":
                found.append(Entry((*path, "step"), (), sharded=False))
    return [*found, Entry(("optimizer", "param_groups"), None)]


def local_plan(state: Sequence[Entry], mesh: Mesh, rank: int) -> SavePlan:
    """The plan of a rank, as `DefaultSavePlanner.create_local_plan` makes it of DTensors, tensors and objects."""
    items = []
    for entry in state:
        if entry.shape is None:
            items.append(WriteItem(index=MetadataIndex(entry.key), type=WriteItemType.BYTE_IO))
            continue
        whole = (0,) * len(entry.shape), entry.shape
        offsets, lengths = map(torch.Size, local_part(entry.shape, entry.split, mesh, rank) if entry.sharded else whole)
        items.append(
            WriteItem(
                index=MetadataIndex(entry.key, offsets),
                type=WriteItemType.SHARD if entry.sharded else WriteItemType.TENSOR,
                tensor_data=TensorWriteData(
                    chunk=ChunkStorageMetadata(offsets=offsets, sizes=lengths),
                    properties=TensorProperties(dtype=torch.uint8 if entry.element == 1 else torch.float32),
                    size=torch.Size(entry.shape),
                ),
            )
        )
    return SavePlan(items, planner_data={entry.key: entry.path for entry in state})
