"""The blocks and the root have one policy: torchrun --nproc-per-node 2 good.py"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(16, 8)
        self.blocks = nn.ModuleList([nn.Linear(8, 8) for _ in range(2)])
        self.head = nn.Linear(8, 16)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x).relu()
        return self.head(x)


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = Net()
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model.blocks:
        fully_shard(block, mp_policy=policy)
    fully_shard(model, mp_policy=policy)

    out = model(torch.arange(8).view(2, 4))
    if dist.get_rank() == 0:
        print(f"computed in {out.dtype}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
