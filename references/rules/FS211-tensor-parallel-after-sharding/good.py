"""Tensor parallelism comes first, then the sharding: torchrun --nproc-per-node 2 good.py"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (1, dist.get_world_size()), mesh_dim_names=("dp_shard", "tp"))
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    parallelize_module(model, mesh["tp"], plan)
    fully_shard(model, mesh=mesh["dp_shard"])

    model(torch.ones(2, 8)).sum().backward()
    if dist.get_rank() == 0:
        print(f"the weight is a {type(model[0].weight.data).__name__} of {model[0].weight.device_mesh.ndim} dimensions")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
