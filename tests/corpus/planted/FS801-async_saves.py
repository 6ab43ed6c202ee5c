"""Asynchronous saves over a gloo group of their own, one in flight, the last one awaited."""

import os

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.fsdp import fully_shard


class Checkpointer:
    def __init__(self, folder):
        self.folder = folder
        self.group = dist.new_group(backend="gloo")
        self.pending = None

    def wait(self):
        if self.pending is not None:
            self.pending.result()
            self.pending = None

    def save(self, step, model, optimizer):
        self.wait()
        model_state, optim_state = get_state_dict(model, optimizer)
        state = {"model": model_state, "optim": optim_state, "step": step}
        target = os.path.join(self.folder, f"step_{step:08d}")
        self.pending = dcp.async_save(state, checkpoint_id=target, process_group=self.group)  # expect: FS801


def make_model():
    torch.manual_seed(3)
    model = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(6)))
    for part in model.children():
        fully_shard(part)
    fully_shard(model)
    return model


def batches(rank, world, count):
    for i in range(count):
        g = torch.Generator("cuda").manual_seed(i * world + rank)
        yield torch.randn(32, 1024, device="cuda", generator=g)


def main():
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("cpu:gloo,cuda:nccl")
    rank, world = dist.get_rank(), dist.get_world_size()
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    checkpointer = Checkpointer("async-out")
    for step, x in enumerate(batches(rank, world, 1000), start=1):
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 100 == 0:
            checkpointer.save(step, model, optimizer)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
