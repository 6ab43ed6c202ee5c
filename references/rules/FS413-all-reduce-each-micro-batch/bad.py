"""One all-reduce a micro-batch: torchrun --nproc-per-node 2 bad.py"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

MICRO_BATCHES = 4


def main() -> None:
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("dp_replicate", "dp_shard"))
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters())

    torch.manual_seed(dist.get_rank())
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        for number in range(MICRO_BATCHES):
            loss = model(torch.randn(2, 8)).square().mean() / MICRO_BATCHES
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    if dist.get_rank() == 0:
        count = sum(event.count for event in profile.key_averages() if event.key == "c10d::allreduce_")
        print(f"all-reduces in a step of {MICRO_BATCHES} micro-batches: {count}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
