"""Each rank goes through a part of the samples: torchrun --nproc-per-node 2 good.py"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Squares(Dataset):
    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.tensor([float(index)]), torch.tensor([float(index**2)])


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = fully_shard(nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    dataset = Squares()
    sampler = DistributedSampler(dataset, shuffle=False)
    loader = DataLoader(dataset, batch_size=4, sampler=sampler)

    seen = torch.zeros(16)
    for inputs, targets in loader:
        seen[inputs.flatten().long()] += 1
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.all_reduce(seen)
    if dist.get_rank() == 0:
        print(f"each sample was trained on {seen.min():.0f} to {seen.max():.0f} times in one epoch")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
