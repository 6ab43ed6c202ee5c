"""Two dimensions: tensor parallelism within, FSDP across. Data goes by the dp coordinate."""

import os

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn as nn
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class FeedForward(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.w_in = nn.Linear(dim, hidden, bias=False)
        self.w_out = nn.Linear(hidden, dim, bias=False)

    def forward(self, x):
        return self.w_out(torch.relu(self.w_in(x)))


class Stack(nn.Module):
    def __init__(self, dim=512, hidden=2048, depth=4):
        super().__init__()
        self.ffs = nn.ModuleList([FeedForward(dim, hidden) for _ in range(depth)])

    def forward(self, x):
        for ff in self.ffs:
            x = x + ff(x)
        return x


def parallelize(model, mesh):
    plan = {"w_in": ColwiseParallel(), "w_out": RowwiseParallel()}
    for ff in model.ffs:
        parallelize_module(ff, mesh["tp"], plan)
        fully_shard(ff, mesh=mesh["dp"])
    return fully_shard(model, mesh=mesh["dp"])


def main():
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    tp = int(os.environ.get("TP", "2"))
    assert world % tp == 0
    mesh = init_device_mesh("cuda", (world // tp, tp), mesh_dim_names=("dp", "tp"))

    torch.manual_seed(0)
    model = parallelize(Stack(), mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, foreach=True)

    data = TensorDataset(torch.randn(10000, 512))
    sampler = DistributedSampler(data, num_replicas=world, rank=rank, drop_last=True)  # expect: FS502
    loader = DataLoader(data, batch_size=16, sampler=sampler)

    step = 0
    for epoch in range(5):
        sampler.set_epoch(epoch)
        for (x,) in loader:
            x = x.cuda(non_blocking=True)
            loss = (model(x) - x).pow(2).mean()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
            optimizer.step()
            optimizer.zero_grad()
            step += 1
    model_state, optim_state = get_state_dict(model, optimizer)
    dcp.save({"model": model_state, "optim": optim_state, "step": step}, checkpoint_id="out/final")
    if rank == 0:
        print("saved after", step)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
