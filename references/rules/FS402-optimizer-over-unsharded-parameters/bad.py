"""The optimizer is built while the root is gathered: torchrun --nproc-per-node 2 bad.py"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    fully_shard(model[0])
    fully_shard(model)
    with torch.no_grad():
        model(torch.ones(2, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    before = [p.full_tensor().clone() for p in model[0].parameters()]
    head = model[2].weight
    head = head.full_tensor() if hasattr(head, "full_tensor") else head.detach().clone()
    for _ in range(3):
        model(torch.ones(2, 8)).pow(2).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    first = sum(not torch.equal(a, p.full_tensor()) for a, p in zip(before, model[0].parameters(), strict=True))
    changed = not torch.equal(head, model[2].weight.full_tensor())
    if dist.get_rank() == 0:
        print(f"in 3 steps the first layer's parameters changed: {first} of 2, the last layer's weight: {changed}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
