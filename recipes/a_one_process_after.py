"""The same, sharded by FSDP2: torchrun --nproc-per-node 2 -- a_one_process_after.py --data TEXT

It computes the losses of a_one_process_before.py: the same weights to begin with, and each rank its part of each batch.
"""

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
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)  # over the sharded parameters, so after sharding
    data = Windows(args.data, 64)
    order: DistributedSampler[Tensor] = DistributedSampler(data, shuffle=True, seed=0, drop_last=True)
    loader = DataLoader(data, args.batch // dist.get_world_size(), sampler=order, drop_last=True)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs * len(loader))

    for epoch in range(args.epochs):
        order.set_epoch(epoch)
        for tokens in loader:
            tokens = tokens.to(device)
            logits = model(tokens[:, :-1])  # the call, whose hooks gather the parameters
            loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # of all ranks together
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            mean = loss.detach()
            dist.all_reduce(mean, dist.ReduceOp.SUM)
            if dist.get_rank() == 0:
                print(f"loss {mean.item() / dist.get_world_size():.6f}")
    end()


if __name__ == "__main__":
    main()
