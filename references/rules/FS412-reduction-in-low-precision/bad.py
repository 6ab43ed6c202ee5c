"""Gradients are summed over the ranks in bfloat16: torchrun --nproc-per-node 2 bad.py"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4, bias=False))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    fully_shard(model, mp_policy=policy)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    scale = 1.0 if dist.get_rank() == 0 else 1 / 512  # both are exact in bfloat16, their sum is not
    model(torch.full((1, 4), scale)).sum().backward()
    gradient = model[0].weight.grad.full_tensor()[0, 0].item()
    optimizer.step()
    if dist.get_rank() == 0:
        print(f"the mean of 1 and 1/512, doubled: {2 * gradient}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
