"""The whole model is one group, gathered at once: torchrun --nproc-per-node 2 bad.py"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(8, 32)
        self.down = nn.Linear(32, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(self.up(x).relu())


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block() for _ in range(4)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def main() -> None:
    dist.init_process_group("gloo")
    model = Model()
    fully_shard(model)
    gathered = []
    for block in model.blocks:
        block.up.register_forward_hook(
            lambda *_: gathered.append(sum(p.numel() for p in model.parameters() if not isinstance(p, DTensor)))
        )
    model(torch.ones(2, 8)).sum().backward()
    if dist.get_rank() == 0:
        share = max(gathered) / sum(p.numel() for p in model.parameters())
        print(f"parameters gathered while the blocks run: {share:.0%}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
