"""The root is sharded before what it holds: torchrun --nproc-per-node 2 bad.py"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard


def main() -> None:
    dist.init_process_group("gloo")
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    fully_shard(model)
    for layer in model:
        fully_shard(layer)
    model(torch.ones(2, 8)).sum().backward()
    if dist.get_rank() == 0:
        print("forward and backward done")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
