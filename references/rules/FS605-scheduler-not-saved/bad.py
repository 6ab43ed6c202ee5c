"""A learning rate that begins again after a resume: torchrun --nproc-per-node 2 bad.py"""

import shutil
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from torch.optim.lr_scheduler import LambdaLR


def build():
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.0)
    return model, optimizer, LambdaLR(optimizer, lambda count: 1 / (1 + count))


def step(model, optimizer, scheduler):
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad()


def main() -> None:
    dist.init_process_group("gloo")
    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(folder)

    model, optimizer, scheduler = build()
    for _ in range(3):
        step(model, optimizer, scheduler)
    model_state, optimizer_state = get_state_dict(model, optimizer)
    dcp.save({"model": model_state, "optimizer": optimizer_state}, checkpoint_id=folder[0])

    model, optimizer, scheduler = build()  # as a new process would
    model_state, optimizer_state = get_state_dict(model, optimizer)
    dcp.load({"model": model_state, "optimizer": optimizer_state}, checkpoint_id=folder[0])
    set_state_dict(model, optimizer, model_state_dict=model_state, optim_state_dict=optimizer_state)
    step(model, optimizer, scheduler)

    if dist.get_rank() == 0:
        print(f"learning rate after the 4th step: {optimizer.param_groups[0]['lr']:.2f}")
        shutil.rmtree(folder[0])
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
