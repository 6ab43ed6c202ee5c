"""Each rank clips by the norm of its own shards: torchrun --nproc-per-node 2 bad.py"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    fully_shard(model)
    model(torch.arange(16.0).reshape(2, 8)).pow(2).mean().backward()

    squares = torch.zeros(())
    for parameter in model.parameters():
        squares += parameter.grad.to_local().pow(2).sum()
    factor = 1.0 / (squares.sqrt() + 1e-6)
    for parameter in model.parameters():
        parameter.grad.mul_(factor.item())

    whole = torch.stack([p.grad.full_tensor().norm() for p in model.parameters()]).norm()
    if dist.get_rank() == 0:
        print(f"norm of the gradient, clipped to 1: {whole:.2f}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
