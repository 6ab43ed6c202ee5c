"""The dropout of the first step once more: torchrun --nproc-per-node 2 bad.py"""

import shutil
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard


def build() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(1000 + dist.get_rank())
    model = nn.Sequential(nn.Linear(8, 64, bias=False), nn.Dropout(0.5), nn.Linear(64, 8, bias=False))
    for layer in (model[0], model[2]):
        nn.init.ones_(layer.weight)
        fully_shard(layer)
    fully_shard(model)
    return model, torch.optim.AdamW(model.parameters())


def train_step(model, optimizer) -> float:
    loss = model(torch.ones(2, 8)).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


def main() -> None:
    dist.init_process_group("gloo")
    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(folder)

    model, optimizer = build()
    train_step(model, optimizer)
    model_state, optimizer_state = get_state_dict(model, optimizer)
    state = {"model": model_state, "optimizer": optimizer_state}
    dcp.save(state, checkpoint_id=folder[0])
    expected = train_step(model, optimizer)

    model, optimizer = build()  # as a new process would
    model_state, optimizer_state = get_state_dict(model, optimizer)
    state = {"model": model_state, "optimizer": optimizer_state}
    dcp.load(state, checkpoint_id=folder[0])
    set_state_dict(model, optimizer, model_state_dict=model_state, optim_state_dict=optimizer_state)

    same = train_step(model, optimizer) == expected
    if dist.get_rank() == 0:
        print(f"the second step's loss is what it was without the stop: {same}")
        shutil.rmtree(folder[0])
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
