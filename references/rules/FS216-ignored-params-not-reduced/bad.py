"""Each rank trains a router of its own: torchrun --nproc-per-node 2 bad.py"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(8, 8)
        self.layer = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) * self.router(x).softmax(-1)


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = Model()
    fully_shard(model, ignored_params=set(model.router.parameters()))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    torch.manual_seed(1 + dist.get_rank())  # each rank has data of its own
    for _ in range(3):
        model(torch.randn(4, 8)).pow(2).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    sums: list[float] = [0.0] * dist.get_world_size()
    dist.all_gather_object(sums, model.router.weight.square().sum().item())
    if dist.get_rank() == 0:
        print(f"the ranks have the same router: {len(set(sums)) == 1}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
