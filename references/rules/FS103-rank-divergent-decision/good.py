"""Rank 0 looks whether there is something to resume from, and all do as it says: torchrun --nproc-per-node 2 good.py"""

import os
import shutil
import tempfile

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.fsdp import fully_shard


def main() -> None:
    dist.init_process_group("gloo")
    disk = tempfile.mkdtemp()  # of this machine alone
    first = [disk]
    dist.broadcast_object_list(first)
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    dcp.save({"model": get_model_state_dict(model)}, checkpoint_id=f"{first[0]}/step-1")

    found = [f"{disk}/step-1" if os.path.exists(f"{disk}/step-1") else None]
    dist.broadcast_object_list(found)
    print(f"rank {dist.get_rank()} resumes: {found[0] is not None}", flush=True)
    if found[0] is not None:
        dcp.load({"model": get_model_state_dict(model)}, checkpoint_id=found[0])

    dist.barrier()
    shutil.rmtree(disk)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
