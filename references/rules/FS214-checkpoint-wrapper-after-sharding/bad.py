"""Blocks that are sharded disappear behind wrappers: torchrun --nproc-per-node 2 bad.py"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import FSDPModule, fully_shard


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(8, 32)
        self.down = nn.Linear(32, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(x)))


def main() -> None:
    dist.init_process_group("gloo")
    blocks = nn.Sequential(*(Block() for _ in range(4)))
    for i, block in enumerate(blocks):
        fully_shard(block)
        blocks[i] = checkpoint_wrapper(block)
    fully_shard(blocks)

    sharded = [block for block in blocks if isinstance(block, FSDPModule)]
    for block, following in zip(sharded, sharded[1:], strict=False):
        block.set_modules_to_forward_prefetch([following])
    blocks(torch.ones(2, 8)).sum().backward()
    if dist.get_rank() == 0:
        print(f"blocks found, to be prefetched: {len(sharded)} of {len(blocks)}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
