"""Momentum is saved, and not asked for: torchrun --nproc-per-node 2 bad.py"""

import shutil
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard


def main() -> None:
    dist.init_process_group("gloo")
    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(folder)
    model = nn.Linear(8, 8)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    weights, moments = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": moments}, checkpoint_id=f"{folder[0]}/step-1")

    optimizer = torch.optim.AdamW(model.parameters())  # as a new process would
    weights, moments = get_state_dict(model, optimizer)
    state = {"model": weights}
    dcp.load(state, checkpoint_id=f"{folder[0]}/step-1")
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)
    restored = [s["exp_avg"].to_local().any() for s in optimizer.state.values()]
    print("momentum after the resume:", all(restored))
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()

    dist.barrier()
    if dist.get_rank() == 0:
        shutil.rmtree(folder[0])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
