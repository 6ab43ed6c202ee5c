"""A save to nowhere: torchrun --nproc-per-node 2 bad.py"""

import shutil
import tempfile

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.fsdp import fully_shard


def main() -> None:
    dist.init_process_group("gloo")
    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(folder)
    model = nn.Linear(8, 8)
    fully_shard(model)
    dcp.save({"model": model.state_dict()})
    print("saved")

    dist.barrier()
    if dist.get_rank() == 0:
        shutil.rmtree(folder[0])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
