"""No gradients when the state is created: torchrun --nproc-per-node 2 good.py"""

import shutil
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard


def build() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    return model, torch.optim.AdamW(model.parameters())


def main() -> None:
    dist.init_process_group("gloo")
    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(folder)

    model, optimizer = build()
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
    model_state, optimizer_state = get_state_dict(model, optimizer)
    dcp.save({"model": model_state, "optimizer": optimizer_state}, checkpoint_id=folder[0])

    model, optimizer = build()  # as a new process would
    model(torch.ones(2, 8)).sum().backward()  # to see that the model runs
    optimizer.zero_grad()
    model_state, optimizer_state = get_state_dict(model, optimizer)
    dcp.load({"model": model_state, "optimizer": optimizer_state}, checkpoint_id=folder[0])
    set_state_dict(model, optimizer, model_state_dict=model_state, optim_state_dict=optimizer_state)

    if dist.get_rank() == 0:
        moments = sum(bool(s["exp_avg_sq"].to_local().any()) for s in optimizer.state.values())
        print(f"parameters with moments after the resume: {moments} of {len(list(model.parameters()))}")
        shutil.rmtree(folder[0])
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
