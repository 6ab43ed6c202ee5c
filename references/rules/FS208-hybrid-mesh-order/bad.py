"""The dimensions of a mesh for hybrid sharding are the wrong way round: torchrun --nproc-per-node 2 bad.py"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    shards, copies = dist.get_world_size(), 1
    mesh = init_device_mesh("cpu", (shards, copies), mesh_dim_names=("dp_shard", "dp_replicate"))
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)

    model(torch.ones(2, 8)).sum().backward()
    held = sum(layer.weight.to_local().numel() for layer in (model[0], model[2]))
    if dist.get_rank() == 0:
        print(f"this rank of {shards} holds {held} of 128 weights")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
