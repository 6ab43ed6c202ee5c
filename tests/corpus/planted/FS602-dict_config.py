"""Everything by a nested dictionary, as from YAML: targets are looked up by name, options passed on."""

import json
import os
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn as nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, get_optimizer_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

DEFAULTS = {
    "model": {"width": 256, "depth": 8},
    "optim": {"name": "AdamW", "args": {"lr": 1e-3, "betas": [0.9, 0.95]}},
    "fsdp": {"param_dtype": "bfloat16", "reshard": True, "sync": "world"},
    "train": {"steps": 1000, "accumulate": 2, "save_every": 250, "out": "out"},
    "seed": 17,
}
DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


def merge(base, extra):
    out = dict(base)
    for key, value in extra.items():
        out[key] = merge(base[key], value) if isinstance(value, dict) and key in base else value
    return out


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.SiLU())

    def forward(self, x):
        return x + self.body(x)


class Model(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        self.blocks = nn.ModuleDict({str(i): Residual(width) for i in range(depth)})
        self.proj = nn.Linear(width, width)

    def forward(self, x):
        for block in self.blocks.values():
            x = block(x)
        return self.proj(x)


def build_model(cfg, mesh):
    model = Model(**cfg["model"])
    policy = MixedPrecisionPolicy(param_dtype=DTYPES[cfg["fsdp"]["param_dtype"]], reduce_dtype=torch.float32)
    options = {"mesh": mesh, "mp_policy": policy, "reshard_after_forward": cfg["fsdp"]["reshard"]}
    for block in model.blocks.values():
        fully_shard(block, **options)
    fully_shard(model, **options)
    return model


def build_optimizer(cfg, model):
    cls = getattr(torch.optim, cfg["optim"]["name"])
    return cls(model.parameters(), **cfg["optim"]["args"])


def main():
    cfg = DEFAULTS
    if len(sys.argv) > 1:
        with open(sys.argv[1]) as f:
            cfg = merge(DEFAULTS, json.load(f))
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    mesh = init_device_mesh("cuda", (dist.get_world_size(),))
    torch.manual_seed(cfg["seed"])
    model = build_model(cfg, mesh)
    optimizer = build_optimizer(cfg, model)
    torch.manual_seed(cfg["seed"] + 1 + dist.get_rank())
    train = cfg["train"]
    for step in range(1, train["steps"] + 1):
        for micro in range(train["accumulate"]):
            model.set_requires_gradient_sync(micro == train["accumulate"] - 1)
            x = torch.randn(16, cfg["model"]["width"], device="cuda")
            loss = (model(x).float() - x).square().mean() / train["accumulate"]
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % train["save_every"] == 0:
            full = StateDictOptions(full_state_dict=True, cpu_offload=True)
            state = {
                "model": get_model_state_dict(model, options=full),
                "optimizer": get_optimizer_state_dict(model, optimizer),
                "step": step,
            }
            dcp.save(state, checkpoint_id=os.path.join(train["out"], f"{step}"))  # expect: FS602
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
