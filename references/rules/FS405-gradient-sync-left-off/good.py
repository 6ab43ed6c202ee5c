"""Gradient sync is on in the last backward: torchrun --nproc-per-node 2 good.py"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    before = [p.full_tensor().clone() for p in model.parameters()]
    for _ in range(3):
        for micro_batch in range(4):
            model.set_requires_gradient_sync(micro_batch == 3)
            (model(torch.ones(2, 8)).pow(2).sum() / 4).backward()
        optimizer.step()
        optimizer.zero_grad()
    after = [p.full_tensor() for p in model.parameters()]

    changed = sum(not torch.equal(a, b) for a, b in zip(before, after, strict=True))
    if dist.get_rank() == 0:
        print(f"parameters that changed in 3 steps: {changed} of {len(after)}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
