"""Training by DistributedDataParallel: torchrun --nproc-per-node 2 -- a_ddp_before.py --data TEXT"""

import argparse
import contextlib
from pathlib import Path

import torch
import torch.distributed as dist
from gpt import Model, Windows
from sharded import end, start
from torch import Tensor
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler


def main() -> None:
    """Train for some epochs."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch", type=int, default=16, help="of all ranks together")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--accumulate", type=int, default=2, help="batches an optimizer step")
    parser.add_argument("--out", type=Path, default=Path("model.pt"))
    args = parser.parse_args()

    device = start()
    torch.manual_seed(0)
    model = DistributedDataParallel(Model().to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    data = Windows(args.data, 64)
    order: DistributedSampler[Tensor] = DistributedSampler(data, shuffle=True, seed=0, drop_last=True)
    loader = DataLoader(data, args.batch // dist.get_world_size(), sampler=order, drop_last=True)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs * len(loader) // args.accumulate)
    total = torch.zeros((), device=device)

    for epoch in range(args.epochs):
        order.set_epoch(epoch)
        for index, tokens in enumerate(loader):
            tokens = tokens.to(device)
            last = index % args.accumulate == args.accumulate - 1
            with contextlib.nullcontext() if last else model.no_sync():
                logits = model(tokens[:, :-1])
                loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()) / args.accumulate
                loss.backward()
            total += loss.detach()
            if not last:
                continue
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            dist.all_reduce(total, dist.ReduceOp.SUM)
            if dist.get_rank() == 0:
                print(f"loss {total.item() / dist.get_world_size():.6f}")
            total.zero_()
    if dist.get_rank() == 0:
        torch.save(model.module.state_dict(), args.out)
    end()


if __name__ == "__main__":
    main()
