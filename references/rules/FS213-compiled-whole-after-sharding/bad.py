"""A graph that is cut at each group: torchrun --nproc-per-node 2 bad.py"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(8, 16)
        self.down = nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(self.up(x).relu())


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Sequential(Block(), Block())
    for block in model:
        fully_shard(block)
    fully_shard(model)
    model.compile(backend="eager", fullgraph=True)  # all of it as one graph, or an exception

    model(torch.ones(2, 8)).sum().backward()
    if dist.get_rank() == 0:
        print("each block is one graph")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
