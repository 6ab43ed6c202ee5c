"""The root is called first: torchrun --nproc-per-node 2 good.py"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(8, 8)
        self.head = nn.Linear(8, 2)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(inputs))


def main() -> None:
    dist.init_process_group("gloo")
    model = Classifier()
    fully_shard(model.encoder)
    fully_shard(model)
    print("logits", model(torch.ones(2, 8)).shape)
    model(torch.ones(2, 8)).sum().backward()
    if dist.get_rank() == 0:
        print("forward and backward done")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
