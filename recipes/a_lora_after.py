"""The same, sharded by FSDP2: torchrun --nproc-per-node 2 -- a_lora_after.py BASE.pt --data TEXT

It computes the losses of a_lora_before.py. Frozen and trained parameters share a group: those that are trained alone
have gradients, and optimizer state. They alone are gathered and written.
"""

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
from gpt import Model, Windows
from lora import adapters, attach, whole_model
from sharded import end, start
from torch import Tensor
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F
from torch.utils.data import DataLoader, DistributedSampler


def build(base: Path, rank: int, device: torch.device) -> Model:
    """Adapters first, so that they are sharded with what they adapt; the weights last."""
    with torch.device("meta"):
        model = attach(Model(), rank)
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    model.to_empty(device=device)
    whole = whole_model(torch.load(base, weights_only=True), rank).state_dict() if dist.get_rank() == 0 else {}
    set_model_state_dict(model, whole, options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=True))
    return model


def main() -> None:
    """Train for some epochs."""
    parser = argparse.ArgumentParser()
    parser.add_argument("base", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch", type=int, default=16, help="of all ranks together")
    parser.add_argument("--lr", type=float, default=1e-2)
    parser.add_argument("--out", type=Path, default=Path("adapters.pt"))
    args = parser.parse_args()

    device = start()
    model = build(args.base, 4, device)
    optimizer = torch.optim.AdamW(adapters(model).values(), lr=args.lr)
    data = Windows(args.data, 64)
    order: DistributedSampler[Tensor] = DistributedSampler(data, shuffle=True, seed=0, drop_last=True)
    loader = DataLoader(data, args.batch // dist.get_world_size(), sampler=order, drop_last=True)

    for epoch in range(args.epochs):
        order.set_epoch(epoch)
        for tokens in loader:
            tokens = tokens.to(device)
            logits = model(tokens[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            mean = loss.detach()
            dist.all_reduce(mean, dist.ReduceOp.SUM)
            if dist.get_rank() == 0:
                print(f"loss {mean.item() / dist.get_world_size():.6f}")
    trained = StateDictOptions(full_state_dict=True, cpu_offload=True, ignore_frozen_params=True)
    weights = get_model_state_dict(model, options=trained)
    if dist.get_rank() == 0:
        torch.save(weights, args.out)
    end()


if __name__ == "__main__":
    main()
