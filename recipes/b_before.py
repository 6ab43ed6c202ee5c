"""Sharded training that cannot be resumed: torchrun --nproc-per-node 2 -- b_before.py --data TEXT"""

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
from gpt import Windows
from sharded import build, end, start
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader, DistributedSampler


def main() -> None:
    """Train for some epochs."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch", type=int, default=16, help="of all ranks together")
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args()

    device = start()
    model = build(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    data = Windows(args.data, 64)
    order: DistributedSampler[Tensor] = DistributedSampler(data, shuffle=True, seed=0, drop_last=True)
    loader = DataLoader(data, args.batch // dist.get_world_size(), sampler=order, drop_last=True)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs * len(loader))

    for epoch in range(args.epochs):
        order.set_epoch(epoch)
        for tokens in loader:
            tokens = tokens.to(device)
            logits = model(tokens[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            if dist.get_rank() == 0:
                print(f"loss {loss.item():.6f}")
        torch.save(model.state_dict(), f"model-{dist.get_rank()}.pt")  # this rank's shards, and nothing to resume from
    end()


if __name__ == "__main__":
    main()
