"""A tied weight in two groups: torchrun --nproc-per-node 2 bad.py"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(16, 8)
        self.middle = nn.Linear(8, 8)
        self.head = nn.Linear(8, 16, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.middle(self.embed(tokens)))


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = Model()
    fully_shard(model.embed)
    fully_shard(model.head)
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    model(torch.arange(8)).logsumexp(-1).sum().backward()
    optimizer.step()

    embed, head = model.embed.weight.full_tensor(), model.head.weight.full_tensor()
    if dist.get_rank() == 0:
        print(f"embedding and head have the same weights: {torch.equal(embed, head)}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
