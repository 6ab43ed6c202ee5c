"""A save that fails takes the last checkpoint with it: torchrun --nproc-per-node 2 bad.py"""

import contextlib
import shutil
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.fsdp import fully_shard


class Full:
    """What a rank cannot write, as on a disk that is full."""

    def __reduce__(self):
        raise OSError("no space left on device")


def main() -> None:
    dist.init_process_group("gloo")
    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(folder)
    rank = dist.get_rank()

    model = nn.Linear(2, 2, bias=False)
    nn.init.zeros_(model.weight)
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    for step in (1, 2):
        (-model(torch.eye(2)).sum()).backward()  # adds 1 to each weight
        optimizer.step()
        optimizer.zero_grad()
        state = {"model": get_model_state_dict(model), f"more-{rank}": Full() if (step, rank) == (2, 1) else step}
        with contextlib.suppress(CheckpointException):
            dcp.save(state, checkpoint_id=f"{folder[0]}/latest")

    nn.init.zeros_(model.weight)
    state = {"model": get_model_state_dict(model)}
    with contextlib.suppress(CheckpointException):
        dcp.load(state, checkpoint_id=f"{folder[0]}/latest")
    restored = model.weight.full_tensor().unique().int().tolist()
    if rank == 0:
        print(f"weights after the resume: {restored}")
        shutil.rmtree(folder[0])
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
