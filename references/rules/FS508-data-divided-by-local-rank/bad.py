"""The first ranks of all machines read the same samples: torchrun --nproc-per-node 2 bad.py"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, Dataset, DistributedSampler

os.environ["LOCAL_RANK"] = "0"  # as on two machines of one GPU each


class Numbers(Dataset):
    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([float(index)])


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = fully_shard(nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    dataset = Numbers()
    rank = int(os.environ["LOCAL_RANK"])
    sampler = DistributedSampler(dataset, num_replicas=dist.get_world_size(), rank=rank)
    loader = DataLoader(dataset, batch_size=4, sampler=sampler)

    read: list[float] = []
    for epoch in range(1):
        sampler.set_epoch(epoch)
        for inputs in loader:
            read += inputs.flatten().tolist()
            model(inputs).pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    of_all: list[list[float]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(of_all, read)
    if dist.get_rank() == 0:
        distinct = {sample for one in of_all for sample in one}
        print(f"of 32 samples an epoch read {len(distinct)}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
