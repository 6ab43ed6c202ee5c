"""Sums of digits by a small transformer: torchrun --nproc-per-node 2 train.py --folder checkpoints

Every entry of CONFIG is also a flag. Started again with the same flags, it goes on from its newest whole checkpoint.
"""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F

CONFIG = {"folder": "checkpoints", "steps": 12, "save_every": 4, "batch": 8, "width": 32, "lr": 3e-3, "seed": 7}


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.attention = nn.MultiheadAttention(width, 4, dropout=0.1, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width), nn.Dropout(0.1))
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])

    def forward(self, x):
        y = self.norms[0](x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.mlp(self.norms[1](x))


class Network(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.embed = nn.Embedding(10, width)
        self.layers = nn.ModuleList(Layer(width) for _ in range(2))
        self.head = nn.Linear(width, 10)

    def forward(self, digits):
        x = self.embed(digits)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def batch_of(step, config, rank, world):
    """This rank's part of the step's batch, and the running sums modulo 10 that are to be told."""
    generator = torch.Generator().manual_seed(config["seed"] * 100003 + step)
    digits = torch.randint(10, (config["batch"], 12), generator=generator).chunk(world)[rank]
    return digits, digits.cumsum(1) % 10


def is_whole(path):
    try:
        parts = dcp.FileSystemReader(path).read_metadata().storage_data.values()
        return all((path / p.relative_path).stat().st_size >= p.offset + p.length for p in parts)
    except Exception:
        return False


def newest(folder):
    found = [None]
    if dist.get_rank() == 0:
        found = [next((p for p in sorted(Path(folder).glob("step-*"), reverse=True) if is_whole(p)), None)]
    dist.broadcast_object_list(found)
    return found[0]


def collect(model, optimizer, scheduler, step):
    weights, moments = get_state_dict(model, optimizer)
    return {
        "weights": weights,
        "moments": moments,
        "scheduler": scheduler.state_dict(),
        "step": step,
        f"rng.{dist.get_rank()}": torch.get_rng_state(),
    }


def restore(path, model, optimizer, scheduler):
    state = collect(model, optimizer, scheduler, 0)
    mine = f"rng.{dist.get_rank()}"
    saved = [key for key in dcp.FileSystemReader(path).read_metadata().state_dict_metadata if key.startswith("rng.")]
    if len(saved) != dist.get_world_size():  # on another number of ranks, dropout starts anew
        del state[mine]
    dcp.load(state, checkpoint_id=path)
    set_state_dict(model, optimizer, model_state_dict=state["weights"], optim_state_dict=state["moments"])
    scheduler.load_state_dict(state["scheduler"])
    if mine in state:
        torch.set_rng_state(state[mine])
    return state["step"]


def main():
    parser = argparse.ArgumentParser()
    for name, value in CONFIG.items():
        parser.add_argument(f"--{name}", type=type(value), default=value)
    config = vars(parser.parse_args())

    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo")
    rank, world = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(config["seed"])
    model = Network(config["width"]).to(device)
    for layer in model.layers:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config["lr"])
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, config["steps"])
    torch.manual_seed(config["seed"] + 1 + rank)  # each rank its own dropout

    path = newest(config["folder"])
    done = restore(path, model, optimizer, scheduler) if path else 0
    for step in range(done + 1, config["steps"] + 1):
        digits, sums = (t.to(device) for t in batch_of(step, config, rank, world))
        loss = F.cross_entropy(model(digits).flatten(0, 1), sums.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        if rank == 0:
            print(f"step {step} loss {mean.item() / world:.6f}", flush=True)
        if step % config["save_every"] == 0:
            target = Path(config["folder"]) / f"step-{step:06}"
            dcp.save(collect(model, optimizer, scheduler, step), checkpoint_id=target)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
