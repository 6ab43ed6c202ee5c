"""A resumed run counts on from where it was: torchrun --nproc-per-node 2 good.py"""

import shutil
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

STEPS = 4


def train(folder, resume=None, stop=None):
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters())
    step = 0
    if resume is not None:
        model_state, optimizer_state = get_state_dict(model, optimizer)
        state = {"model": model_state, "optimizer": optimizer_state, "step": step}
        dcp.load(state, checkpoint_id=resume)
        step = state["step"]
        set_state_dict(model, optimizer, model_state_dict=model_state, optim_state_dict=optimizer_state)
    while step < STEPS:
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        model_state, optimizer_state = get_state_dict(model, optimizer)
        state = {"model": model_state, "optimizer": optimizer_state, "step": step}
        dcp.save(state, checkpoint_id=f"{folder}/step-{step}")
        if step == stop:
            break
    return int(next(iter(optimizer.state.values()))["step"])


def main() -> None:
    dist.init_process_group("gloo")
    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(folder)

    train(f"{folder[0]}/first", stop=2)  # and is killed
    done = train(f"{folder[0]}/second", resume=f"{folder[0]}/first/step-2")
    if dist.get_rank() == 0:
        print(f"steps of {STEPS} that the optimizer has made: {done}")
        shutil.rmtree(folder[0])
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
