"""One group after the other goes to the GPU: torchrun --nproc-per-node 2 good.py (two GPUs)"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard


def main() -> None:
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.TransformerEncoderLayer(1024, 8, 4096, batch_first=True) for _ in range(8)])
    for block in model:
        fully_shard(block)
    fully_shard(model)

    peak = torch.cuda.max_memory_allocated() / 2**20
    if dist.get_rank() == 0:
        print(f"most memory that the GPU held until all was sharded: {peak:.0f} MiB")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
