"""It asks for less than it uses. On torch 2.7 it raises AttributeError: torchrun --nproc-per-node 2 bad.py"""

# /// script
# dependencies = ["torch>=2.6", "numpy"]
# ///

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard


def main() -> None:
    dist.init_process_group("gloo")
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    model.set_gradient_divide_factor(1.0)  # sums over the ranks; each loss is divided by the tokens of all

    model(torch.ones(2, 8)).sum().backward()
    if dist.get_rank() == 0:
        print(f"gradients on torch {torch.__version__}: {sum(p.grad is not None for p in model.parameters())}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
