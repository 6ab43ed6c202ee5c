"""Each process uses a GPU of its own. Needs two GPUs: torchrun --nproc-per-node 2 good.py"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard


def main() -> None:
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    device = torch.zeros(1, device="cuda").get_device()
    devices = [None] * dist.get_world_size()
    dist.all_gather_object(devices, device)
    if dist.get_rank() == 0:
        print(f"GPUs in use: {len(set(devices))} by {len(devices)} processes")

    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)).cuda()
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    model(torch.ones(2, 8, device="cuda")).sum().backward()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
