"""The same with Distributed Checkpoint, exact after a kill: torchrun --nproc-per-node 2 -- blocking.py --data TEXT

Run the same command line again, and it goes on from the newest whole checkpoint. SIGTERM saves, and exits with 0.
"""

import argparse
import os
import signal
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_model_state_dict,
    set_state_dict,
)
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F
from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Block(nn.Module):
    """Causal attention, then an MLP."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.heads, self.qkv, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, -1)
        )
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class Model(nn.Module):
    """Predicts the next byte."""

    def __init__(self, width: int = 64, heads: int = 4, layers: int = 2, length: int = 64) -> None:
        super().__init__()
        self.embed, self.position = nn.Embedding(256, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 256)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens) + self.position.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Windows(Dataset[Tensor]):
    """Pieces of a text, each of `length` bytes and the one that follows."""

    def __init__(self, path: Path, length: int) -> None:
        self.text, self.length = torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8), length

    def __len__(self) -> int:
        return (len(self.text) - 1) // self.length

    def __getitem__(self, index: int) -> Tensor:
        start = index * self.length
        return self.text[start : start + self.length + 1].long()


def build(device: torch.device) -> Model:
    """The model that one process builds after `torch.manual_seed(0)`, in parts: only rank 0 ever holds it whole."""
    with torch.device("meta"):
        model = Model()
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)  # the root last: it takes what no block has
    model.to_empty(device=device)
    torch.manual_seed(0)
    whole = Model().state_dict() if dist.get_rank() == 0 else {}
    set_model_state_dict(model, whole, options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=True))
    return model


class TrainState(Stateful):
    """What makes the next step: weights, optimizer, schedule, and how many steps, and so batches, are done."""

    def __init__(self, model: Model, optimizer: torch.optim.Optimizer, scheduler: LRScheduler) -> None:
        self.model, self.optimizer, self.scheduler, self.step = model, optimizer, scheduler, 0

    def state_dict(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer, "scheduler": self.scheduler.state_dict(), "step": self.step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        self.scheduler.load_state_dict(state["scheduler"])
        self.step = state["step"]


class RankState(Stateful):
    """What differs from rank to rank; its key names the rank, for DCP keeps one value a key."""

    def __init__(self) -> None:
        self.key = f"rank-{dist.get_rank()}"

    def state_dict(self) -> dict[str, Any]:
        cuda = torch.cuda.get_rng_state() if torch.cuda.is_available() else torch.empty(0)
        return {"cpu": torch.get_rng_state(), "cuda": cuda}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        torch.set_rng_state(state["cpu"])
        if torch.cuda.is_available():
            torch.cuda.set_rng_state(state["cuda"])


def newest_whole(folder: Path) -> Path | None:
    """The newest checkpoint whose metadata reads, and whose files are as long as it says; rank 0 looks for all."""
    found: list[Path | None] = [None]
    for path in sorted(folder.glob("step-*"), reverse=True) if dist.get_rank() == 0 else ():
        try:
            parts = dcp.FileSystemReader(path).read_metadata().storage_data.values()
            whole = all((path / p.relative_path).stat().st_size >= p.offset + p.length for p in parts)
        except Exception:  # what a crash leaves behind fails to be read in many ways
            whole = False
        if whole:
            found = [path]
            break
    dist.broadcast_object_list(found)
    return found[0]


def main() -> None:
    """Train for some epochs."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch", type=int, default=16, help="of all ranks together")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--checkpoint-dir", type=Path, default=Path("checkpoints"))
    parser.add_argument("--checkpoint-interval", type=int, default=10)
    args = parser.parse_args()

    signals: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: signals.append(number))
    accelerated = torch.cuda.is_available()
    local_rank = int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local_rank) if accelerated else torch.device("cpu")
    if accelerated:
        torch.cuda.set_device(device)
    dist.init_process_group("cpu:gloo,cuda:nccl" if accelerated else "gloo")
    model = build(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    data = Windows(args.data, 64)
    order: DistributedSampler[Tensor] = DistributedSampler(data, shuffle=True, seed=0, drop_last=True)
    generator = torch.Generator()  # of its own, so that starting an epoch draws nothing from the saved one
    batch = args.batch // dist.get_world_size()
    loader = DataLoader(data, batch, sampler=order, drop_last=True, generator=generator)
    steps = args.epochs * len(loader)
    train, ranks = TrainState(model, optimizer, CosineAnnealingLR(optimizer, steps)), RankState()
    state = {"train": train, ranks.key: ranks}
    if newest := newest_whole(args.checkpoint_dir):
        dcp.load(state, checkpoint_id=newest)  # on the same number of ranks; `{"train": train}` on another

    stop = torch.tensor(0)
    for epoch in range(train.step // len(loader), args.epochs):
        order.set_epoch(epoch)
        done = train.step - epoch * len(loader)  # batches of this epoch
        for index, tokens in enumerate(loader):
            if index < done:
                continue
            tokens = tokens.to(device)
            logits = model(tokens[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            train.scheduler.step()
            optimizer.zero_grad()
            train.step += 1
            if dist.get_rank() == 0:
                print(f"step {train.step}: loss {loss.item():.6f}", flush=True)
            stop.fill_(len(signals))
            dist.all_reduce(stop)  # all ranks stop after the same step
            if stop or train.step % args.checkpoint_interval == 0 or train.step == steps:
                dcp.save(state, checkpoint_id=args.checkpoint_dir / f"step-{train.step:08}")
            if stop:
                break
        if stop:
            break
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
