"""Moments go by the names of the parameters: torchrun --nproc-per-node 2 good.py"""

import shutil
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
from torch.distributed.fsdp import fully_shard


def build() -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False))
    for layer in model:
        fully_shard(layer)
    return fully_shard(model)


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model(torch.ones(2, 8)).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def moment(optimizer: torch.optim.Optimizer, weight: torch.Tensor) -> torch.Tensor:
    return optimizer.state[weight]["exp_avg"].to_local().clone()


def main() -> None:
    dist.init_process_group("gloo")
    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(folder)

    model = build()
    optimizer = torch.optim.AdamW([*model[0].parameters(), *model[1].parameters()])
    train_step(model, optimizer)
    saved = moment(optimizer, model[0].weight)
    dcp.save({"optimizer": get_optimizer_state_dict(model, optimizer)}, checkpoint_id=folder[0])

    model = build()  # as a new process would, of a script that was changed
    optimizer = torch.optim.AdamW([*model[1].parameters(), *model[0].parameters()])
    train_step(model, optimizer)
    state = {"optimizer": get_optimizer_state_dict(model, optimizer)}
    dcp.load(state, checkpoint_id=folder[0])
    set_optimizer_state_dict(model, optimizer, state["optimizer"])

    if dist.get_rank() == 0:
        same = torch.equal(moment(optimizer, model[0].weight), saved)
        print(f"the first layer has its moments back: {same}")
        shutil.rmtree(folder[0])
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
