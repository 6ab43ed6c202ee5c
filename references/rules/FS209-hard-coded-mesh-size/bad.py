"""A mesh for four ranks, started with two: torchrun --nproc-per-node 2 bad.py"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def main() -> None:
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp_replicate", "dp_shard"))
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    model(torch.ones(2, 8)).sum().backward()
    if dist.get_rank() == 0:
        print(f"trained on a mesh of {mesh.size(0)} x {mesh.size(1)}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
