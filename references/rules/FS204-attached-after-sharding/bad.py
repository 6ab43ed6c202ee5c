"""A new head is attached to a model that is sharded already: torchrun --nproc-per-node 2 bad.py"""

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
    model[2] = nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    for _ in range(3):
        x = torch.full((2, 8), 1.0 + dist.get_rank())
        model(x).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    head = model[2].weight.detach()
    mine = head.full_tensor() if hasattr(head, "full_tensor") else head
    others = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(others, mine)
    if dist.get_rank() == 0:
        print("the head is the same on all ranks:", torch.equal(*others))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
