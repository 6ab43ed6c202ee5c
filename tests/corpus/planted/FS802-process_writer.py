"""Saves written by a process of its own, from a program that is safe to import again."""

import os

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn as nn
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType
from torch.distributed.fsdp import fully_shard


def init():
    local = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    dist.init_process_group("cpu:gloo,cuda:nccl")
    return torch.device("cuda", local)


def train(device):
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(512, 512) for _ in range(4)))
    for m in model:
        fully_shard(m)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters())
    group = dist.new_group(backend="gloo")
    future = None
    for step in range(1, 301):
        seed = step + 1000 * dist.get_rank()
        x = torch.randn(16, 512, generator=torch.Generator().manual_seed(seed)).to(device)
        model(x).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 100 == 0:
            model_state, optimizer_state = get_state_dict(model, optimizer)
            future = dcp.async_save(  # expect: FS802
                {"model": model_state, "optimizer": optimizer_state, "step": step},
                checkpoint_id=f"process/{step}",
                process_group=group,
                async_checkpointer_type=AsyncCheckpointerType.PROCESS,
            )
    future.result()


def main():
    device = init()
    train(device)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
