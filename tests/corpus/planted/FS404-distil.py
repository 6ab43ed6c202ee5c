"""A student learns from a frozen teacher. Both are sharded; the loss that is shown is reduced, the one that trains is not."""

import os
import random

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.fsdp import fully_shard
from torch.distributed.fsdp import register_fsdp_forward_method
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class Stream(IterableDataset):
    """Every rank, and every worker of it, reads its own stride."""

    def __init__(self, rank, world):
        self.rank, self.world = rank, world

    def __iter__(self):
        info = get_worker_info()
        workers = info.num_workers if info else 1
        worker = info.id if info else 0
        rng = random.Random(self.rank * workers + worker)
        for _ in range(1000):
            yield torch.tensor([rng.random() for _ in range(48)])


class Tower(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        self.stem = nn.Linear(48, width)
        self.blocks = nn.ModuleList([nn.Linear(width, width) for _ in range(depth)])
        self.head = nn.Linear(width, 16)

    def encode(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = F.gelu(block(x)) + x
        return x

    def forward(self, x):
        return self.head(self.encode(x))


def wrap(tower):
    for block in tower.blocks:
        fully_shard(block)
    fully_shard(tower)
    register_fsdp_forward_method(tower, "encode")
    return tower


def main():
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    torch.manual_seed(3)
    teacher = wrap(Tower(256, 8)).eval().requires_grad_(False)
    student = wrap(Tower(256, 2))
    optimizer = torch.optim.AdamW(student.parameters(), lr=1e-3)
    loader = DataLoader(Stream(dist.get_rank(), dist.get_world_size()), batch_size=10, num_workers=2)
    for step, x in enumerate(loader):
        x = x.cuda()
        hidden = student.stem(x)  # expect: FS404
        with torch.no_grad():
            target = teacher(x).softmax(-1)
            features = teacher.encode(x)
        loss = F.kl_div(student(x).log_softmax(-1), target, reduction="batchmean")
        loss = loss + F.mse_loss(student.encode(x), features) + hidden.square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 50 == 0:
            shown = loss.detach().clone()
            dist.all_reduce(shown)
            shown /= dist.get_world_size()
            if dist.get_rank() == 0:
                print(step, float(shown))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
