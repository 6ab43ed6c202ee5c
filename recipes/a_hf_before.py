"""Fine-tuning a causal LM of transformers in one process: python a_hf_before.py MODEL_FOLDER --data TEXT"""

import argparse
from pathlib import Path

import torch
from gpt import Windows
from torch.utils.data import DataLoader, RandomSampler
from transformers import AutoModelForCausalLM


def main() -> None:
    """Train for some epochs."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--out", type=Path, default=Path("tuned"))
    args = parser.parse_args()

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32).to(device)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    data = Windows(args.data, 64)  # of bytes, to need no tokenizer
    order = RandomSampler(data, generator=torch.Generator().manual_seed(0))
    loader = DataLoader(data, args.batch, sampler=order, drop_last=True)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs * len(loader))

    for _ in range(args.epochs):
        for tokens in loader:
            tokens = tokens.to(device)
            loss = model(input_ids=tokens, labels=tokens).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            print(f"loss {loss.item():.6f}")
    model.save_pretrained(args.out)


if __name__ == "__main__":
    main()
