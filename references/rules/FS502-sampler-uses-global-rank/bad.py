"""Tensor-parallel ranks get different samples: torchrun --nproc-per-node 2 bad.py"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Numbers(Dataset):
    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((8,), float(index))


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=("dp", "tp"))
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    fully_shard(model, mesh=mesh["dp"])
    dataset = Numbers()
    sampler = DistributedSampler(dataset, shuffle=False)
    loader = DataLoader(dataset, batch_size=4, sampler=sampler)

    inputs = next(iter(loader))
    model(inputs).pow(2).mean().backward()
    batches = [torch.empty_like(inputs) for _ in range(dist.get_world_size())]
    dist.all_gather(batches, inputs)
    if dist.get_rank() == 0:
        print(f"the two ranks of one model replica got the same batch: {torch.equal(*batches)}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
