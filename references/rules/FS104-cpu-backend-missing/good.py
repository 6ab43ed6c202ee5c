"""The save has a group of its own, over gloo. Needs two GPUs: torchrun --nproc-per-node 2 good.py"""

import os
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.fsdp import fully_shard


def main() -> None:
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(folder)

    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)).cuda()
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    group = dist.new_group(backend="gloo")
    saving = dcp.async_save({"model": get_model_state_dict(model)}, checkpoint_id=folder[0], process_group=group)
    model(torch.ones(2, 8, device="cuda")).sum().backward()
    saving.result()

    if dist.get_rank() == 0:
        print("saved:", sorted(os.listdir(folder[0])))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
