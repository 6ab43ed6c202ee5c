"""A list of blocks is sharded as if it were a module to call: torchrun --nproc-per-node 2 bad.py"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(8, 8) for _ in range(3)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x).relu()
        return x


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = Net()
    fully_shard(model.blocks)
    fully_shard(model)
    model(torch.ones(2, 8)).sum().backward()
    if dist.get_rank() == 0:
        print(f"sharded blocks: {len(model.blocks)}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
