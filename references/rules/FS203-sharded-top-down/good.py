"""The root is sharded after what it holds: torchrun --nproc-per-node 2 good.py"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard


def main() -> None:
    dist.init_process_group("gloo")
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    model(torch.ones(2, 8)).sum().backward()
    if dist.get_rank() == 0:
        print("forward and backward done")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
