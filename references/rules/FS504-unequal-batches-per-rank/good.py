"""Each rank has as many batches: torchrun --nproc-per-node 2 good.py"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard


def batches(count: int) -> list[torch.Tensor]:
    """The part of this rank."""
    every = [torch.randn(4, 8) for _ in range(count)]
    every = every[: count - count % dist.get_world_size()]  # what is over belongs to no rank
    return every[dist.get_rank() :: dist.get_world_size()]


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters())
    own = batches(5)
    print(f"rank {dist.get_rank()} has {len(own)} batches", flush=True)
    for batch in own:
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
