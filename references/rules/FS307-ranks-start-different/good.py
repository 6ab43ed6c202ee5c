"""All ranks draw the same weights, then data of their own: torchrun --nproc-per-node 2 good.py"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def main() -> None:
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(), 1), mesh_dim_names=("dp_replicate", "dp_shard"))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(1 + dist.get_rank())

    for _ in range(3):
        model(torch.randn(4, 8)).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    sums: list[float] = [0.0] * dist.get_world_size()
    dist.all_gather_object(sums, sum(p.to_local().sum().item() for p in model.parameters()))
    if dist.get_rank() == 0:
        print(f"the replicas have the same weights: {len(set(sums)) == 1}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
