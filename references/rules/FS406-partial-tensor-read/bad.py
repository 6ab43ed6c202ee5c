"""The norm of a sharded gradient is read before it is whole: torchrun --nproc-per-node 2 bad.py"""

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

    weight = model[0].weight
    whole = weight.grad.full_tensor().norm().item()
    norm = weight.grad.norm().item()
    if dist.get_rank() == 0:
        print(f"the norm is the gradient's: {abs(norm - whole) < 1e-3 * whole}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
