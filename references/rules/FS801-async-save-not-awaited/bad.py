"""A save fails and the program never knows: torchrun --nproc-per-node 2 bad.py"""

import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.fsdp import fully_shard


def main() -> None:
    dist.init_process_group("gloo")
    group = dist.new_group(backend="gloo")
    model = nn.Linear(8, 8)
    fully_shard(model)

    with tempfile.NamedTemporaryFile() as not_a_folder:
        folder = Path(not_a_folder.name, "step-1")  # cannot be written, like a disk that is full
        future = dcp.async_save({"model": model.state_dict()}, checkpoint_id=folder, process_group=group)
        model(torch.ones(2, 8)).sum().backward()
        time.sleep(1)  # stands for further steps
        print("done: no failure was seen")
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
