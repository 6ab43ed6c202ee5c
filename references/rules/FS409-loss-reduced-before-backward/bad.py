"""The mean loss of all ranks is differentiated: torchrun --nproc-per-node 2 bad.py"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    fully_shard(model)

    inputs = torch.full((2, 8), 1.0 + dist.get_rank())
    model(inputs).pow(2).mean().backward()
    expected = model[0].weight.grad.full_tensor().norm().item()
    model.zero_grad()

    loss = model(inputs).pow(2).mean()
    dist.all_reduce(loss)
    loss = loss / dist.get_world_size()
    loss.backward()
    norm = model[0].weight.grad.full_tensor().norm().item()
    if dist.get_rank() == 0:
        print(f"mean loss {loss.item():.3f}, gradient {norm / expected:.2f} times what it should be")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
