"""The method of FSDP modules, and nothing around it: torchrun --nproc-per-node 2 good.py"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

MICRO_BATCHES = 4


def main() -> None:
    dist.init_process_group("gloo")
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    for layer in model:
        fully_shard(layer)
    fully_shard(model)

    reduced = 0
    for micro_batch in range(MICRO_BATCHES):
        model.set_requires_gradient_sync(micro_batch == MICRO_BATCHES - 1)
        model(torch.ones(2, 8)).sum().backward()
        reduced += all(p.grad is not None for p in model.parameters())

    if dist.get_rank() == 0:
        print(f"micro-batches after which gradients were reduced: {reduced} of {MICRO_BATCHES}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
