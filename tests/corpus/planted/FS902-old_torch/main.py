"""A project that is held at an older torch: what it calls was there already."""

import os

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.fsdp import OffloadPolicy, fully_shard


def main():
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(64, 64) for _ in range(4)])
    model[3].bias.requires_grad_(False)
    for layer in model[:3]:
        fully_shard(layer, offload_policy=OffloadPolicy())
    fully_shard(model, ignored_params={model[3].bias})  # expect: FS902
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    torch.manual_seed(dist.get_rank())
    for _ in range(100):
        model(torch.randn(8, 64, device="cuda")).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    dcp.save({"model": get_model_state_dict(model)}, checkpoint_id="old/final")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
