"""Fine-tuning by LoRA in one process: python a_lora_before.py BASE.pt --data TEXT

The weights in BASE.pt are frozen; beside each attention's two layers a product of two thin matrices is trained. They
alone are written.
"""

import argparse
from pathlib import Path

import torch
from gpt import Windows
from lora import adapters, whole_model
from torch.nn import functional as F
from torch.utils.data import DataLoader, RandomSampler


def main() -> None:
    """Train for some epochs."""
    parser = argparse.ArgumentParser()
    parser.add_argument("base", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--lr", type=float, default=1e-2)
    parser.add_argument("--out", type=Path, default=Path("adapters.pt"))
    args = parser.parse_args()

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = whole_model(torch.load(args.base, weights_only=True), rank=4).to(device)
    optimizer = torch.optim.AdamW(adapters(model).values(), lr=args.lr)
    data = Windows(args.data, 64)
    order = RandomSampler(data, generator=torch.Generator().manual_seed(0))
    loader = DataLoader(data, args.batch, sampler=order, drop_last=True)

    for _ in range(args.epochs):
        for tokens in loader:
            tokens = tokens.to(device)
            logits = model(tokens[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            print(f"loss {loss.item():.6f}")
    torch.save({name: parameter.detach().cpu() for name, parameter in adapters(model).items()}, args.out)


if __name__ == "__main__":
    main()
