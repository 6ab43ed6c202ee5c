"""Images of bars, horizontal or vertical, by data parallelism: torchrun --nproc-per-node 2 train.py"""

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Bars(Dataset):
    def __len__(self):
        return 128

    def __getitem__(self, index):
        g = torch.Generator().manual_seed(index)
        image = 0.5 * torch.randn(8, 8, generator=g)
        line = int(torch.randint(8, (1,), generator=g))
        if index % 2:
            image[line] += 1
        else:
            image[:, line] += 1
        return image, index % 2


class Mixer(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.rows, self.columns = nn.Linear(size, size), nn.Linear(size, size)
        self.norm = nn.LayerNorm(size)

    def forward(self, x):
        x = x + torch.relu(self.rows(self.norm(x)))
        return x + torch.relu(self.columns(x.transpose(1, 2))).transpose(1, 2)


def build(depth):
    return nn.Sequential(*(Mixer(8) for _ in range(depth)), nn.Flatten(), nn.Linear(64, 2))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=2)
    p.add_argument("--per-rank-batch", type=int, default=8)
    p.add_argument("--depth", type=int, default=3)
    opt = p.parse_args()

    local = int(os.environ["LOCAL_RANK"])
    use_cuda = torch.cuda.is_available()
    if use_cuda:
        torch.cuda.set_device(local)
    dist.init_process_group("nccl" if use_cuda else "gloo")
    device = torch.device("cuda", local) if use_cuda else torch.device("cpu")

    torch.manual_seed(3)
    model = DDP(build(opt.depth).to(device), device_ids=[local] if use_cuda else None)
    sgd = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    sampler = DistributedSampler(Bars(), shuffle=True, seed=3, drop_last=True)
    loader = DataLoader(Bars(), opt.per_rank_batch, sampler=sampler, drop_last=True)
    criterion = nn.CrossEntropyLoss()
    for epoch in range(opt.epochs):
        sampler.set_epoch(epoch)
        for images, kinds in loader:
            loss = criterion(model(images.to(device)), kinds.to(device))
            sgd.zero_grad()
            loss.backward()
            sgd.step()
            mean = loss.detach().clone()
            dist.all_reduce(mean)
            if dist.get_rank() == 0:
                print(f"epoch {epoch} loss {mean.item() / dist.get_world_size():.6f}", flush=True)
    if dist.get_rank() == 0:
        torch.save(model.module.state_dict(), "bars.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
