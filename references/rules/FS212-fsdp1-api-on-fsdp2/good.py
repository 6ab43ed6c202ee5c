"""A model sharded by fully_shard is asked for its state by the helpers: torchrun --nproc-per-node 2 good.py"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import FullyShardedDataParallel, StateDictType, fully_shard


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    for layer in (model[0], model[2]):
        fully_shard(layer)
    fully_shard(model)
    model(torch.ones(2, 8)).sum().backward()

    kind = StateDictType.FULL_STATE_DICT
    state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if dist.get_rank() == 0:
        print(f"{kind.name}: a weight of the state has the shape {tuple(state['0.weight'].shape)}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
