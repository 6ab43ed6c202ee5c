"""The second save waits for the first: torchrun --nproc-per-node 2 good.py"""

import shutil
import tempfile
import time

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.fsdp import fully_shard


class UnevenWriter(dcp.FileSystemWriter):
    """Stands for storage that is slow on one rank."""

    def write_data(self, plan, planner):
        time.sleep(0.4 * dist.get_rank())
        return super().write_data(plan, planner)


def main() -> None:
    dist.init_process_group("gloo")
    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(folder)
    group = dist.new_group(backend="gloo")
    model = nn.Linear(8, 8)
    fully_shard(model)

    writer = UnevenWriter(f"{folder[0]}/step-1")
    first = dcp.async_save({"model": model.state_dict()}, storage_writer=writer, process_group=group)
    first.result()
    writer = UnevenWriter(f"{folder[0]}/step-2")
    second = dcp.async_save({"model": model.state_dict()}, storage_writer=writer, process_group=group)
    second.result()

    if dist.get_rank() == 0:
        print("both saves are done")
        shutil.rmtree(folder[0])
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
