"""FSDP2 from the path that it once had: torchrun --nproc-per-node 2 bad.py"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._composable.fsdp import fully_shard
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
