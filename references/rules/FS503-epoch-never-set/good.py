"""The sampler is told the epoch: torchrun --nproc-per-node 2 good.py"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, Dataset, DistributedSampler


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
    sampler = DistributedSampler(dataset, shuffle=True)
    loader = DataLoader(dataset, batch_size=4, sampler=sampler)

    orders: list[list[float]] = []
    for epoch in range(2):
        orders.append([])
        sampler.set_epoch(epoch)
        for inputs in loader:
            orders[epoch] += inputs.flatten().tolist()
            model(inputs).pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    if dist.get_rank() == 0:
        print(f"the second epoch has the order of the first: {orders[0] == orders[1]}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
