"""A byte-level language model with rotary positions, saved while it trains.

    torchrun --nproc-per-node 2 train.py --save-dir runs/one --max-steps 12

It trains on its own source, which is always at hand; --text names another file.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F

HEADS, DIM, CONTEXT = 2, 32, 24


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(DIM, 3 * DIM, bias=False)
        self.out = nn.Linear(DIM, DIM, bias=False)
        self.register_buffer("angles", self.rotary(), persistent=False)

    def rotary(self) -> Tensor:
        half = DIM // HEADS // 2
        frequencies = 10000.0 ** (-torch.arange(half) / half)
        return torch.outer(torch.arange(CONTEXT).float(), frequencies)

    def reset_parameters(self) -> None:
        nn.init.normal_(self.qkv.weight, std=0.05)
        nn.init.normal_(self.out.weight, std=0.05)
        with torch.no_grad():
            self.angles.copy_(self.rotary())

    def turn(self, x: Tensor) -> Tensor:
        sin, cos = self.angles[: x.shape[-2]].sin(), self.angles[: x.shape[-2]].cos()
        a, b = x.chunk(2, dim=-1)
        return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        mixed = F.scaled_dot_product_attention(self.turn(q), self.turn(k), v, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(-2))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(DIM)
        self.attention = Attention()
        self.up, self.down = nn.Linear(DIM, 4 * DIM), nn.Linear(4 * DIM, DIM)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm(x))
        return x + self.down(F.silu(self.up(x)))


class LanguageModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(256, DIM)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.unembed = nn.Linear(DIM, 256)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens)
        for block in self.blocks:
            x = block(x)
        return self.unembed(x)

    def init_weights(self) -> None:
        for module in (self.tokens, self.unembed):
            module.reset_parameters()
        for block in self.blocks:
            for module in (block.norm, block.attention, block.up, block.down):
                module.reset_parameters()


class Progress(Stateful):
    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.model, self.optimizer, self.step = model, optimizer, 0

    def state_dict(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer, "step": self.step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        self.step = state["step"]


class Trainer:
    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.rank, self.world = args, dist.get_rank(), dist.get_world_size()
        self.device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if args.cuda else torch.device("cpu")
        self.bytes = torch.tensor(list(args.text.read_bytes()))
        torch.manual_seed(args.seed)
        with torch.device("meta"):
            self.model = LanguageModel()
        for block in self.model.blocks:
            fully_shard(block)
        fully_shard(self.model)
        self.model.to_empty(device=self.device)
        self.model.init_weights()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=args.lr)
        self.progress = Progress(self.model, self.optimizer)
        self.saving_group = dist.new_group(backend="gloo")
        self.saving = None

    def examples(self, step: int) -> Tensor:
        generator = torch.Generator().manual_seed(self.args.seed + step)
        starts = torch.randint(len(self.bytes) - CONTEXT - 1, (self.args.batch,), generator=generator)
        whole = torch.stack([self.bytes[int(s) : int(s) + CONTEXT + 1] for s in starts])
        return whole.chunk(self.world)[self.rank].to(self.device)

    def resume(self) -> None:
        found = [None]
        if self.rank == 0:
            folders = sorted(self.args.save_dir.glob("step-*"), reverse=True)
            found = [next(filter(whole, folders), None)]
        dist.broadcast_object_list(found)
        if found[0] is not None:
            dcp.load({"progress": self.progress}, checkpoint_id=found[0])

    def save(self) -> None:
        self.wait()
        target = self.args.save_dir / f"step-{self.progress.step:06}"
        self.saving = dcp.async_save({"progress": self.progress}, checkpoint_id=target, process_group=self.saving_group)

    def wait(self) -> None:
        if self.saving is not None:
            self.saving.result()

    def train(self) -> None:
        self.resume()
        while self.progress.step < self.args.max_steps:
            self.progress.step += 1
            tokens = self.examples(self.progress.step)
            loss = F.cross_entropy(self.model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            total = loss.detach().clone()
            dist.all_reduce(total)
            if self.rank == 0:
                print(f"step={self.progress.step} loss={total.item() / self.world:.6f}", flush=True)
            if self.progress.step % self.args.save_every == 0:
                self.save()
        self.wait()


def whole(folder: Path) -> bool:
    try:
        parts = dcp.FileSystemReader(folder).read_metadata().storage_data.values()
        return all((folder / p.relative_path).stat().st_size >= p.offset + p.length for p in parts)
    except Exception:
        return False


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--save-dir", type=Path, default=Path("runs/one"))
    parser.add_argument("--text", type=Path, default=Path(__file__))
    parser.add_argument("--max-steps", type=int, default=12)
    parser.add_argument("--save-every", type=int, default=4)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=11)
    args = parser.parse_args()
    args.cuda = torch.cuda.is_available()
    if args.cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("cpu:gloo,cuda:nccl" if args.cuda else "gloo")
    Trainer(args).train()
    dist.barrier()
    dist.destroy_process_group()
