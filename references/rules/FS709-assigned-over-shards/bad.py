"""Whole tensors in the place of shards: torchrun --nproc-per-node 2 bad.py"""

import shutil
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard


def main() -> None:
    dist.init_process_group("gloo")
    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(folder)
    pretrained = f"{folder[0]}/pretrained.pt"
    if dist.get_rank() == 0:
        torch.save(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)).state_dict(), pretrained)
    dist.barrier()
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    for layer in model:
        fully_shard(layer)
    fully_shard(model)

    state = torch.load(pretrained, weights_only=True)
    model.load_state_dict(state, assign=True)
    print("forward:", tuple(model(torch.ones(2, 8)).shape))

    dist.barrier()
    if dist.get_rank() == 0:
        shutil.rmtree(folder[0])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
