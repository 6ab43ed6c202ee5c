"""The next one is whole before the last is removed: torchrun --nproc-per-node 2 good.py"""

import os
import shutil
import tempfile
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.fsdp import fully_shard


class SlowWriter(dcp.FileSystemWriter):
    """Writes as to a busy file system."""

    def finish(self, metadata, results) -> None:
        time.sleep(1)
        super().finish(metadata, results)


def whole(folder: str) -> int:
    return sum(".metadata" in files for _, _, files in os.walk(folder))


def main() -> None:
    dist.init_process_group("gloo")
    background = dist.new_group(backend="gloo")
    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(folder)

    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters())
    previous, left = None, []
    for step in range(3):
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        model_state, optimizer_state = get_state_dict(model, optimizer)
        state = {"model": model_state, "optimizer": optimizer_state, "step": step + 1}
        path = f"{folder[0]}/step-{step}"
        writer = SlowWriter(path)
        saving = dcp.async_save(state, checkpoint_id=path, storage_writer=writer, process_group=background)
        saving.result()
        if previous is not None and dist.get_rank() == 0:
            shutil.rmtree(previous)
            left.append(whole(folder[0]))
        previous = path

    if dist.get_rank() == 0:
        print(f"whole checkpoints after each removal: {left}")
        shutil.rmtree(folder[0])
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
