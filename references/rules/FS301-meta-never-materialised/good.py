"""A model on the meta device is sharded, materialised, initialised and called: torchrun --nproc-per-node 2 good.py"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    for layer in (model[0], model[2]):
        fully_shard(layer)
    fully_shard(model)
    model.to_empty(device="cpu")
    for layer in (model[0], model[2]):
        layer.reset_parameters()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    print("parameters are on", model[0].weight.device)

    loss = model(torch.ones(2, 8)).pow(2).mean()
    loss.backward()
    optimizer.step()
    if dist.get_rank() == 0:
        print(f"loss of the first step: {loss.item():.3f}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
