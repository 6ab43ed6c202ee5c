"""A file of plain weights into a sharded model, a checkpoint of it, and back: no training."""

import os
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict
from torch.distributed.fsdp import fully_shard


def strip(weights, prefix="module."):
    return {k.removeprefix(prefix): v for k, v in weights.items()}


def make():
    model = nn.Sequential(*[nn.Linear(100, 100) for _ in range(5)])
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    return model


def to_checkpoint(source, target):
    model = make()
    weights = strip(torch.load(source, map_location="cpu", mmap=True, weights_only=True))
    missing = set_model_state_dict(
        model, weights, options=StateDictOptions(full_state_dict=True, strict=False)
    ).missing_keys
    if missing:
        raise SystemExit(f"not in {source}: {missing}")
    dcp.save({"model": get_model_state_dict(model)}, checkpoint_id=target)


def to_file(source, target):
    model = make()
    state = {"model": get_model_state_dict(model)}
    dcp.load(state, checkpoint_id=source)
    set_model_state_dict(model, state["model"])
    whole = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if dist.get_rank() == 0:
        torch.save(whole, target)
    dist.barrier()


def main():
    direction, source, target = sys.argv[1:]
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    {"in": to_checkpoint, "out": to_file}[direction](source, target)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
