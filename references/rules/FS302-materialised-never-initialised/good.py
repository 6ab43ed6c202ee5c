"""A model is materialised by to_empty and initialised: torchrun --nproc-per-node 2 good.py"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True)  # fills new memory with NaN, so that the program does the same each time
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    for layer in (model[0], model[2]):
        fully_shard(layer)
    fully_shard(model)
    model.to_empty(device="cpu")
    for layer in (model[0], model[2]):
        layer.reset_parameters()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)

    loss = model(torch.ones(2, 8)).pow(2).mean()
    loss.backward()
    optimizer.step()
    if dist.get_rank() == 0:
        print(f"the loss of the first step is a number: {loss.isfinite().item()}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
