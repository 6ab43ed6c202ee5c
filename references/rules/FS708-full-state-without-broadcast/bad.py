"""The first rank has the weights, the others have none: torchrun --nproc-per-node 2 bad.py"""

import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.fsdp import fully_shard


def main() -> None:
    dist.init_process_group("gloo")
    pretrained = nn.Linear(8, 8).state_dict() if dist.get_rank() == 0 else {}
    model = nn.Linear(8, 8)
    fully_shard(model)
    options = StateDictOptions(full_state_dict=True)
    set_model_state_dict(model, pretrained, options=options)
    print("loaded")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
