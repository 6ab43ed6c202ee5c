"""Only the last micro-batch counts: torchrun --nproc-per-node 2 bad.py"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

MICRO_BATCHES = 4


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        for index in range(MICRO_BATCHES):
            loss = model(torch.full((2, 1), float(index))).mean() / MICRO_BATCHES
            optimizer.zero_grad()
            loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 10.0).full_tensor().item()
        optimizer.step()
    if dist.get_rank() == 0:
        print(f"the mean over inputs of 0, 1, 2 and 3 has the gradient {norm:.2f}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
