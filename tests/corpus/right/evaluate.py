"""Evaluation alone: a meta model, materialised and filled from a checkpoint, in every rank's part of the data."""

import os
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, Subset, TensorDataset


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(6))
        self.head = nn.Linear(64, 10)
        self.register_buffer("scale", torch.ones(64))

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x * self.scale))
        return self.head(x)


def restore(path):
    with torch.device("meta"):
        model = Classifier()
    for layer in model.layers:
        fully_shard(layer)
    fully_shard(model)
    model.to_empty(device="cuda")
    state = {"model": get_model_state_dict(model)}
    dcp.load(state, checkpoint_id=path)
    set_model_state_dict(model, state["model"])
    return model.eval()


@torch.inference_mode()
def accuracy(model, loader):
    right = torch.zeros(2, device="cuda")
    for x, y in loader:
        guess = model(x.cuda()).argmax(-1)
        right += torch.stack(((guess == y.cuda()).sum(), torch.tensor(len(y), device="cuda")))
    dist.all_reduce(right)
    return (right[0] / right[1]).item()


def main(path):
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    rank, world = dist.get_rank(), dist.get_world_size()
    g = torch.Generator().manual_seed(0)
    whole = TensorDataset(torch.randn(4096, 64, generator=g), torch.randint(10, (4096,), generator=g))
    part = Subset(whole, range(rank, len(whole) // world * world, world))
    result = accuracy(restore(path), DataLoader(part, batch_size=64))
    if rank == 0:
        print(f"accuracy {result:.3%}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
