"""What a checkpoint of the run takes: bytes, files, the shares of ranks and nodes, and the memory of async saves."""

from __future__ import annotations

import io
import os
import tempfile
import time
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch

from ..errors import UserError
from .entries import entries
from .memory import optimizer_bytes, parameter_bytes
from .mesh import Mesh, chunk
from .model import Model
from .scale import metadata_bytes

MODES = ("disabled", "async", "async_with_pinned_mem")
_MEASURED = 2**28  # bytes written to measure a disk
_COPIED_AHEAD = 10**7  # bytes that a FileSystemWriter copies from the device ahead of writing (per_thread_copy_ahead)


@dataclass(frozen=True)
class Checkpoint:
    """Bytes of one. `rank` and `node` are of those that write most; `staged` is of a rank's state on the device."""

    bytes: int
    elements: int
    metadata: int
    files: int
    rank: int
    node: int
    staged: int

    def host_memory(self, mode: str) -> tuple[int, str]:
        """Bytes of host memory that saving adds on each rank, and why.

        * `disabled`: tensors are copied from the device one after the other (`FileSystemWriter`).
        * `async`: `dcp.async_save` copies all that the rank holds (also what a replica of it writes), and frees the
          copy once it is written.
        * `async_with_pinned_mem`: the same copy in shared, page-locked memory, which is kept for every save.
        """
        if mode == "disabled":
            return min(_COPIED_AHEAD, self.staged), "a few tensors at a time, on their way to the disk"
        if mode == "async":
            return self.staged, "a copy of the rank's state, until it is written"
        return self.staged, "a copy of the rank's state in shared, page-locked memory, kept for every save"


def checkpoint(model: Model, mesh: Mesh, optimizer: str) -> Checkpoint:
    """The checkpoint of model, optimizer and each rank's random state, as a generated script saves it."""
    state = entries(model, optimizer)
    elements = sum(entry.bytes for entry in state)
    saved = 0
    for entry in state:
        parts = 1
        if entry.sharded and entry.shape:
            local = chunk(entry.shape[0], mesh.tp, 0)[1] if entry.split == 0 else entry.shape[0]
            parts = min(mesh.dp_shard, local) * (mesh.tp if entry.split is not None else 1)
        saved += parts
    random = torch.get_rng_state().numel() + _overhead()
    data = elements + saved * _overhead() + mesh.world * random
    metadata = metadata_bytes(state, mesh)
    held = _local_bytes(model, mesh, optimizer)
    rank = held // mesh.dp_replicate + random
    return Checkpoint(
        bytes=data + metadata,
        elements=elements,
        metadata=metadata,
        files=mesh.world + 1,
        rank=rank,
        node=min(data, rank * min(mesh.ranks_per_node, mesh.world)),
        staged=held,
    )


def _local_bytes(model: Model, mesh: Mesh, optimizer: str) -> int:
    """Bytes of the state that a rank holds; of a tied parameter once, which is one tensor."""
    buffers = sum(buffer.bytes for buffer in model.buffers if buffer.persistent)
    return parameter_bytes(model, mesh) + optimizer_bytes(model, mesh, optimizer) + buffers


@lru_cache(maxsize=1)
def _overhead() -> int:
    """Bytes that `torch.save`, by which DCP writes each chunk, adds to the elements."""
    written = io.BytesIO()
    tensor = torch.zeros(1024)
    torch.save(tensor, written)
    return len(written.getvalue()) - tensor.numel() * tensor.element_size()


def measure(folder: Path) -> int:
    """Bytes a second at which one process of this machine writes a file there, until the disk has it."""
    block = os.urandom(2**24)
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix="fsdp2-plan-") as file:
            started = time.perf_counter()
            for _ in range(_MEASURED // len(block)):
                file.write(block)
            file.flush()
            os.fsync(file.fileno())
            seconds = time.perf_counter() - started
    except OSError as error:
        raise UserError(f"--measure {folder}: {error.strerror}; expected a folder on the storage of checkpoints, with "
                        f"{_MEASURED // 2**20} MiB free") from error  # fmt: skip
    return int(_MEASURED / seconds)
