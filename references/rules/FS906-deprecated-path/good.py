"""FSDP2 from its public path: torchrun --nproc-per-node 2 good.py"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor


def main() -> None:
    dist.init_process_group("gloo")
    model = nn.Linear(8, 8)
    fully_shard(model)
    model(torch.ones(2, 8)).sum().backward()
    if dist.get_rank() == 0:
        print(f"sharded parameters: {sum(isinstance(p, DTensor) for p in model.parameters())}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
