"""The root is sharded last and takes what no block took: torchrun --nproc-per-node 2 good.py"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.LayerNorm(8))
    for block in model[:2]:
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    for step in range(3):
        torch.manual_seed(100 * step + dist.get_rank())
        model(torch.randn(4, 8)).pow(2).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    norm = model[2].weight
    norm = norm.full_tensor() if isinstance(norm, DTensor) else norm.detach()
    everywhere = [torch.empty_like(norm) for _ in range(dist.get_world_size())]
    dist.all_gather(everywhere, norm)
    if dist.get_rank() == 0:
        print("weights of the last layer are the same on all ranks:", torch.equal(*everywhere))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
