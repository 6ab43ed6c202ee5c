"""Fit a residual network to a noisy function, in one process: python train.py --steps 20"""

import argparse

import torch
from torch import nn


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.inner = nn.Linear(width, 4 * width)
        self.outer = nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.outer(torch.tanh(self.inner(self.norm(x))))


class Regressor(nn.Module):
    def __init__(self, width=24, depth=3):
        super().__init__()
        self.enter = nn.Linear(4, width)
        self.blocks = nn.Sequential(*[Residual(width) for _ in range(depth)])
        self.leave = nn.Linear(width, 1)

    def forward(self, x):
        return self.leave(self.blocks(self.enter(x))).squeeze(-1)


def samples(n, generator):
    x = torch.randn(n, 4, generator=generator)
    return x, torch.sin(x[:, 0]) * x[:, 1] + 0.1 * torch.randn(n, generator=generator)


def train(steps, batch, lr):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    model = Regressor().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    warmup = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=5)
    generator = torch.Generator().manual_seed(1)
    for step in range(1, steps + 1):
        x, y = (t.to(device) for t in samples(batch, generator))
        loss = (model.forward(x) - y).pow(2).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        warmup.step()
        optimizer.zero_grad()
        print(f"step {step} loss {loss.item():.6f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--lr", type=float, default=1e-2)
    args = parser.parse_args()
    train(args.steps, args.batch, args.lr)
