"""The save has a group of its own: torchrun --nproc-per-node 2 good.py"""

import shutil
import tempfile
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.fsdp import fully_shard


class UnevenWriter(dcp.FileSystemWriter):
    """Stands for storage that is slow on one rank."""

    def prepare_local_plan(self, plan):
        time.sleep(1.0 * dist.get_rank())
        return super().prepare_local_plan(plan)


def main() -> None:
    dist.init_process_group("gloo")
    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(folder)
    model = nn.Linear(8, 8)
    fully_shard(model)

    state = {"model": model.state_dict()}
    group = dist.new_group(backend="gloo")
    future = dcp.async_save(state, storage_writer=UnevenWriter(folder[0]), process_group=group)
    time.sleep(0.5)  # stands for a step
    loss = torch.ones(8)
    dist.all_reduce(loss)
    future.result()

    if dist.get_rank() == 0:
        print("saved beside an all_reduce")
        shutil.rmtree(folder[0])
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
