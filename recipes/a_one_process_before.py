"""A training script for one process, as most begin: python a_one_process_before.py --data TEXT"""

import argparse
from pathlib import Path

import torch
from gpt import Model, Windows
from torch.nn import functional as F
from torch.utils.data import DataLoader, RandomSampler


def main() -> None:
    """Train for some epochs."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args()

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    model = Model().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    data = Windows(args.data, 64)
    order = RandomSampler(data, generator=torch.Generator().manual_seed(0))
    loader = DataLoader(data, args.batch, sampler=order, drop_last=True)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs * len(loader))

    for _ in range(args.epochs):
        for tokens in loader:
            tokens = tokens.to(device)
            logits = model.forward(tokens[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            print(f"loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
