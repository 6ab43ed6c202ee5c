"""Denoise sequences with a recurrent mixer, sharded; nothing is saved yet.

torchrun --nproc-per-node 2 train.py --total-steps 12
"""

import argparse
import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard


@dataclass
class Settings:
    total_steps: int = 12
    batch: int = 8
    hidden: int = 20
    lr: float = 0.01


class Mix(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.decay = nn.Linear(hidden, hidden)
        self.value = nn.Linear(hidden, hidden)
        self.drop = nn.Dropout(0.2)

    def forward(self, x):
        state, out = torch.zeros_like(x[:, 0]), []
        decay, value = torch.sigmoid(self.decay(x)), self.value(x)
        for t in range(x.shape[1]):
            state = decay[:, t] * state + (1 - decay[:, t]) * value[:, t]
            out.append(state)
        return x + self.drop(torch.stack(out, dim=1))


class Denoiser(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.read = nn.Linear(1, hidden)
        self.mixes = nn.ModuleList([Mix(hidden) for _ in range(2)])
        self.write = nn.Linear(hidden, 1)

    def forward(self, x):
        x = self.read(x.unsqueeze(-1))
        for mix in self.mixes:
            x = mix(x)
        return self.write(x).squeeze(-1)


def signals(step, settings, rank, world):
    g = torch.Generator().manual_seed(step)
    clean = torch.sin(torch.linspace(0, 6, 16) * torch.rand(settings.batch, 1, generator=g) * 3)
    noisy = clean + 0.2 * torch.randn(clean.shape, generator=g)
    return noisy.chunk(world)[rank], clean.chunk(world)[rank]


def run(settings):
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(5)
    net = Denoiser(settings.hidden).to(device)
    for mix in net.mixes:
        fully_shard(mix)
    fully_shard(net)
    optim = torch.optim.AdamW(net.parameters(), lr=settings.lr)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optim, settings.lr, total_steps=settings.total_steps)
    torch.manual_seed(100 + rank)
    for step in range(1, settings.total_steps + 1):
        noisy, clean = (t.to(device) for t in signals(step, settings, rank, world))
        loss = nn.functional.mse_loss(net(noisy), clean)
        loss.backward()
        optim.step()
        schedule.step()
        optim.zero_grad()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        if rank == 0:
            print(f"step {step}: loss {mean.item() / world:.6f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--total-steps", type=int, default=12)
    run(Settings(total_steps=parser.parse_args().total_steps))
