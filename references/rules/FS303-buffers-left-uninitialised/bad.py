"""Parameters are initialised after to_empty, a buffer is not: torchrun --nproc-per-node 2 bad.py"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard


class Scaled(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.proj = nn.Linear(width, width)
        self.register_buffer("scale", torch.ones(width), persistent=False)

    def reset_parameters(self) -> None:
        self.proj.reset_parameters()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.proj(x) * self.scale


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True)  # fills new memory with NaN, so that the program does the same each time
    with torch.device("meta"):
        model = nn.Sequential(Scaled(8), nn.ReLU(), Scaled(8))
    for block in (model[0], model[2]):
        fully_shard(block)
    fully_shard(model)
    model.to_empty(device="cpu")
    for block in (model[0], model[2]):
        block.reset_parameters()

    loss = model(torch.ones(2, 8)).pow(2).mean()
    if dist.get_rank() == 0:
        print(f"the loss of the first step is a number: {loss.isfinite().item()}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
