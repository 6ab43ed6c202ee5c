"""Adapters into a frozen base: put in before sharding, only they are trained and exported."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class LoRALinear(nn.Module):
    def __init__(self, base, rank=8):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a = nn.Linear(base.in_features, rank, bias=False)
        self.b = nn.Linear(rank, base.out_features, bias=False)
        nn.init.zeros_(self.b.weight)

    def forward(self, x):
        return self.base(x) + self.b(self.a(x))


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.q_proj = nn.Linear(dim, dim)
        self.v_proj = nn.Linear(dim, dim)
        self.norm = nn.LayerNorm(dim)

    def forward(self, x):
        return x + self.v_proj(torch.tanh(self.q_proj(self.norm(x))))


class Base(nn.Module):
    def __init__(self, dim=256, depth=6):
        super().__init__()
        self.layers = nn.ModuleList([Block(dim) for _ in range(depth)])
        self.score = nn.Linear(dim, 2)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.score(x)


def add_adapters(model):
    for layer in model.layers:
        layer.q_proj = LoRALinear(layer.q_proj)
        layer.v_proj = LoRALinear(layer.v_proj)


def shard(model):
    for layer in model.layers:
        fully_shard(layer)
    fully_shard(model)


def main():
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    torch.manual_seed(9)
    model = Base()
    model.requires_grad_(False)
    add_adapters(model)
    shard(model)
    trainable = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trainable, lr=2e-4)
    data = TensorDataset(torch.randn(5000, 256), torch.randint(2, (5000,)))
    sampler = DistributedSampler(data, drop_last=True)
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x.cuda()), y.cuda())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    adapters = {k: v for k, v in model.state_dict().items() if ".a." in k or ".b." in k}
    if dist.get_rank() == 0:
        torch.save(adapters, "adapters.pt")  # expect: FS601
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
