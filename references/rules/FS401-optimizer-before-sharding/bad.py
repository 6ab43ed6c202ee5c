"""The optimizer steps parameters that fully_shard has replaced: torchrun --nproc-per-node 2 bad.py"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for layer in (model[0], model[2]):
        fully_shard(layer)
    fully_shard(model)

    before = [p.full_tensor().clone() for p in model.parameters()]
    for _ in range(3):
        model(torch.ones(2, 8)).pow(2).sum().backward()
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
