"""The whole model is gathered on every rank, and stays there: torchrun --nproc-per-node 2 bad.py"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard


def main() -> None:
    dist.init_process_group("gloo")
    model = nn.Sequential(*(nn.Linear(256, 256, bias=False) for _ in range(4)))
    for layer in model:
        fully_shard(layer)
    fully_shard(model)

    options = StateDictOptions(full_state_dict=True)
    state = get_model_state_dict(model, options=options)
    size = torch.tensor([sum(tensor.numel() for tensor in state.values())])

    sizes = [torch.zeros_like(size) for _ in range(dist.get_world_size())]
    dist.all_gather(sizes, size)
    if dist.get_rank() == 0:
        print("elements of whole tensors on each rank:", [int(size) for size in sizes])
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
