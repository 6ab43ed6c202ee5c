"""A mask for each rank: torchrun --nproc-per-node 2 good.py"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

SEED = 42


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(SEED)
    model = nn.Sequential(nn.Linear(8, 64), nn.Dropout(0.5))
    fully_shard(model[0])
    fully_shard(model)
    torch.manual_seed(SEED + dist.get_rank())
    optimizer = torch.optim.AdamW(model.parameters())

    same = []
    for _ in range(3):
        out = model(torch.ones(4, 8))
        out.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        masks = [torch.empty(4, 64) for _ in range(dist.get_world_size())]
        dist.all_gather(masks, (out.detach() != 0).float())
        same.append(torch.equal(masks[0], masks[1]))

    if dist.get_rank() == 0:
        print(f"steps in which both ranks left out the same: {sum(same)} of {len(same)}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
