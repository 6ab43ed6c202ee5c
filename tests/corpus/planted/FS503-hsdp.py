"""Hybrid sharding: replicas across nodes, shards within; gradients accumulate and are reduced with the last one."""

import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.utils.data import DataLoader, Dataset, DistributedSampler

ACCUMULATE = 4


class Pairs(Dataset):
    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        x = torch.randn(128, generator=g)
        return x, x.flip(0)


class MLPBlock(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.w1, self.w2 = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x):
        return x + self.w2(nn.functional.gelu(self.w1(x)))


class Mixer(nn.Module):
    def __init__(self, d, n):
        super().__init__()
        self.blocks = nn.ModuleList(MLPBlock(d) for _ in range(n))
        self.final = nn.LayerNorm(d)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.final(x)


def build(mesh):
    torch.manual_seed(42)
    model = Mixer(128, 12)
    kwargs = {"mesh": mesh["replicate", "shard"], "mp_policy": MixedPrecisionPolicy(torch.bfloat16, torch.float32)}
    for block in model.blocks:
        fully_shard(block, **kwargs)
    fully_shard(model, **kwargs)
    assert isinstance(model, FSDPModule)
    return model


def run():
    local = int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local)
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    per_node = int(os.environ["LOCAL_WORLD_SIZE"])
    mesh = init_device_mesh(
        "cuda", (dist.get_world_size() // per_node, per_node), mesh_dim_names=("replicate", "shard")
    )
    model = build(mesh)
    optim = torch.optim.Adam(model.parameters(), lr=1e-4)
    data = Pairs(1 << 16)
    sampler = DistributedSampler(data, shuffle=True)  # expect: FS503
    loader = DataLoader(data, batch_size=8, sampler=sampler, drop_last=True)

    for _ in range(2):
        for i, (x, y) in enumerate(loader):
            last = (i + 1) % ACCUMULATE == 0
            model.set_requires_gradient_sync(last)
            out = model(x.to(device))
            loss = nn.functional.mse_loss(out.float(), y.to(device)) / ACCUMULATE
            loss.backward()
            if last:
                optim.step()
                optim.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    run()
