"""Gradients are cleared before the step that needs them: torchrun --nproc-per-node 2 bad.py"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    for layer in (model[0], model[2]):
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    torch.manual_seed(1 + dist.get_rank())
    before = [p.full_tensor() for p in model.parameters()]

    for _ in range(3):
        model(torch.randn(4, 8)).pow(2).mean().backward()
        optimizer.zero_grad()
        optimizer.step()

    after = [p.full_tensor() for p in model.parameters()]
    if dist.get_rank() == 0:
        changed = sum(not torch.equal(x, y) for x, y in zip(before, after, strict=True))
        print(f"tensors of weights that changed in 3 steps: {changed} of {len(after)}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
