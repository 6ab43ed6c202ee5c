"""The averaged copy of a model is made first, and sharded like it: torchrun --nproc-per-node 2 good.py"""

import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    average = copy.deepcopy(model).requires_grad_(False)
    fully_shard(model)
    fully_shard(average)

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
    with torch.no_grad():
        for kept, new in zip(average.parameters(), model.parameters(), strict=True):
            kept.lerp_(new, 0.1)
    if dist.get_rank() == 0:
        print(f"averaged parameters: {len(list(average.parameters()))}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
