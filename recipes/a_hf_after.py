"""The same, sharded by FSDP2: torchrun --nproc-per-node 2 -- a_hf_after.py MODEL_FOLDER --data TEXT

It computes the losses of a_hf_before.py. Rank 0 alone ever holds the model whole, in the CPU's memory; a script that
`fsdp2 generate --model hf:MODEL_FOLDER` writes has each rank read its own part of the files.
"""

import argparse
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from gpt import Windows
from sharded import end, start
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler
from transformers import AutoConfig, AutoModelForCausalLM


def build(folder: Path, device: torch.device) -> Any:
    """The model in parts: on meta, sharded layer by layer, allocated, and then loaded."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=torch.float32)
    layers = [m for m in model.modules() if type(m).__name__ in model._no_split_modules]  # as transformers itself does
    for layer in layers:
        fully_shard(layer)
    fully_shard(model)  # the root last: it takes what no layer has, and both ends of a tie
    model.to_empty(device=device)
    whole = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32) if dist.get_rank() == 0 else None
    weights = whole.state_dict() if whole is not None else {}
    set_model_state_dict(model, weights, options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=True))
    for name, buffer in model.named_buffers():  # rotary frequencies and the like: in no state dict, and now garbage
        if whole is not None:
            buffer.copy_(whole.get_buffer(name))
        dist.broadcast(buffer, src=0)
    return model.train()


def main() -> None:
    """Train for some epochs."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch", type=int, default=16, help="of all ranks together")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--out", type=Path, default=Path("tuned"))
    args = parser.parse_args()

    device = start()
    model = build(args.model, device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)  # over the sharded parameters, so after sharding
    data = Windows(args.data, 64)  # of bytes, to need no tokenizer
    order: DistributedSampler[Tensor] = DistributedSampler(data, shuffle=True, seed=0, drop_last=True)
    loader = DataLoader(data, args.batch // dist.get_world_size(), sampler=order, drop_last=True)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs * len(loader))

    for epoch in range(args.epochs):
        order.set_epoch(epoch)
        for tokens in loader:
            tokens = tokens.to(device)
            loss = model(input_ids=tokens, labels=tokens).loss
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # of all ranks together
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            mean = loss.detach()
            dist.all_reduce(mean, dist.ReduceOp.SUM)
            if dist.get_rank() == 0:
                print(f"loss {mean.item() / dist.get_world_size():.6f}")
    weights = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if dist.get_rank() == 0:  # in the form that from_pretrained reads, in which what is tied stands once
        names = [name for name, _ in (*model.named_parameters(), *model.named_buffers()) if name in weights]
        model.save_pretrained(args.out, state_dict={name: weights[name] for name in names})
    end()


if __name__ == "__main__":
    main()
