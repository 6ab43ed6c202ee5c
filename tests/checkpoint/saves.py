"""Checkpoints that DCP itself writes: in one process, with each tensor cut into the blocks that a test wants."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from pytorch_fsdp2_dcp.validate.checkpoint.folders import open_folder
from pytorch_fsdp2_dcp.validate.checkpoint.layouts import Checkpoint, survey
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex
from torch.distributed.checkpoint.planner import SavePlan, TensorWriteData, WriteItem, WriteItemType

Cuts = dict[str, list[list[int]]]  # per key and dimension, the sizes of the blocks


class Cutter(DefaultSavePlanner):
    """Plans a save as many ranks would, each holding one block of a tensor."""

    def __init__(self, cuts: Cuts) -> None:
        super().__init__()
        self.cuts = cuts

    def create_local_plan(self) -> SavePlan:
        plan = super().create_local_plan()
        self.plan = dataclasses.replace(plan, items=[part for item in plan.items for part in self._parts(item)])
        return self.plan

    def _parts(self, item: WriteItem) -> list[WriteItem]:
        cuts, data = self.cuts.get(item.index.fqn), item.tensor_data
        if cuts is None or data is None:
            return [item]
        starts = [list(itertools.accumulate([0, *sizes[:-1]])) for sizes in cuts]
        blocks = zip(itertools.product(*starts), itertools.product(*cuts), strict=True)
        return [
            WriteItem(
                MetadataIndex(item.index.fqn, offsets, number),
                WriteItemType.SHARD,
                tensor_data=TensorWriteData(
                    ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes)), data.properties, data.size
                ),
            )
            for number, (offsets, sizes) in enumerate(blocks)
        ]

    def resolve_data(self, write_item: WriteItem) -> Any:
        if write_item.type != WriteItemType.SHARD:
            return super().resolve_data(write_item)
        chunk = write_item.tensor_data.chunk
        block = tuple(slice(a, a + n) for a, n in zip(chunk.offsets, chunk.sizes, strict=True))
        return self.state_dict[write_item.index.fqn][block]


def save(folder: Path, state: dict[str, Any], cuts: Cuts | None = None, files: int = 2) -> Path:
    """Save the state in so many files; the folder."""
    writer = dcp.FileSystemWriter(folder, thread_count=files)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that no process group is there is meant
        dcp.save(state, storage_writer=writer, planner=Cutter(cuts or {}))
    return folder


def look(folder: Path) -> Checkpoint:
    """The checkpoint in the folder."""
    found = survey(open_folder(str(folder)))
    assert isinstance(found, Checkpoint)
    return found


def digest_in_memory(tensor: Tensor) -> str:
    """What the digest of a whole tensor is by its definition."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    data = bytes(tensor.contiguous().view(-1).view(torch.uint8).numpy()) if tensor.numel() else b""
    return hashlib.sha256(f"{dtype} {list(tensor.shape)}\n".encode() + data).hexdigest()
