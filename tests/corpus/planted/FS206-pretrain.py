"""A decoder built on the meta device, with a checkpoint that resumes: functions and argparse, one Stateful for all."""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional as F


def rotary_table(dim, length):
    inverse = 1.0 / (10000 ** (torch.arange(0, dim, 2).float() / dim))
    return torch.outer(torch.arange(length).float(), inverse)


class Block(nn.Module):
    def __init__(self, dim, length):
        super().__init__()
        self.norm = nn.RMSNorm(dim)
        self.up = nn.Linear(dim, 4 * dim, bias=False)
        self.down = nn.Linear(4 * dim, dim, bias=False)
        self.dim, self.length = dim, length
        self.register_buffer("table", rotary_table(dim, length), persistent=False)

    def init_weights(self):
        self.norm.reset_parameters()
        nn.init.normal_(self.up.weight, std=0.02)
        nn.init.normal_(self.down.weight, std=0.02)
        self.table = rotary_table(self.dim, self.length).to(self.up.weight.device)

    def forward(self, x):
        shift = torch.cat((self.table.sin(), self.table.cos()), dim=-1)[: x.shape[1]]
        return x + self.down(F.silu(self.up(self.norm(x) + shift)))


class Decoder(nn.Module):
    def __init__(self, vocab, dim, layers, length):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.layers = nn.ModuleList(Block(dim, length) for _ in range(layers))
        self.norm = nn.RMSNorm(dim)
        self.head = nn.Linear(dim, vocab, bias=False)

    def init_weights(self):
        nn.init.normal_(self.embed.weight, std=0.02)
        self.norm.reset_parameters()
        nn.init.normal_(self.head.weight, std=0.02)
        for layer in self.layers:
            layer.init_weights()

    def forward(self, tokens):
        h = self.embed(tokens)
        for layer in self.layers:
            h = layer(h)
        return self.head(self.norm(h))


class AppState(Stateful):
    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer
        self.step = 0

    def state_dict(self):
        model_state, optimizer_state = get_state_dict(self.model, self.optimizer)
        return {"model": model_state, "optim": optimizer_state, "step": self.step}

    def load_state_dict(self, state):
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optim"])
        self.step = state["step"]


def newest(folder):
    """The newest whole checkpoint as rank 0 sees it."""
    found = [None]
    if dist.get_rank() == 0:
        whole = [p for p in Path(folder).glob("step-*") if (p / ".metadata").exists()]
        found = [str(max(whole, key=lambda p: int(p.name.split("-")[1])))] if whole else [None]
    dist.broadcast_object_list(found, src=0)
    return found[0]


def batch_for(step, rank, args):
    generator = torch.Generator().manual_seed(step * 10007 + rank)
    return torch.randint(0, args.vocab, (args.batch, args.length + 1), generator=generator).cuda()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--vocab", type=int, default=32000)
    parser.add_argument("--dim", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--steps", type=int, default=10000)
    parser.add_argument("--every", type=int, default=500)
    parser.add_argument("--folder", default="checkpoints")
    args = parser.parse_args()

    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    mesh = init_device_mesh("cuda", (dist.get_world_size(),), mesh_dim_names=("dp",))

    with torch.device("meta"):
        model = Decoder(args.vocab, args.dim, args.layers, args.length).bfloat16()
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    model.to_empty(device="cuda")
    model.init_weights()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1, fused=True)  # expect: FS206

    app = AppState(model, optimizer)
    path = newest(args.folder)
    if path is not None:
        dcp.load({"app": app}, checkpoint_id=path)

    while app.step < args.steps:
        tokens = batch_for(app.step, dist.get_rank(), args)
        logits = model(tokens[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        app.step += 1
        if app.step % 10 == 0:
            norm = norm.full_tensor()
            if dist.get_rank() == 0:
                print(app.step, loss.item(), norm.item())
        if app.step % args.every == 0:
            dcp.save({"app": app}, checkpoint_id=f"{args.folder}/step-{app.step}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
