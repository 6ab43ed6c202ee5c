"""Every key has a prefix too many, and nothing is loaded: torchrun --nproc-per-node 2 bad.py"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict
from torch.distributed.fsdp import fully_shard


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    trained, model = nn.Linear(8, 8), nn.Linear(8, 8)
    fully_shard(trained)
    fully_shard(model)
    saved = {f"module.{name}": tensor for name, tensor in get_model_state_dict(trained).items()}

    options = StateDictOptions(strict=False)
    set_model_state_dict(model, saved, options=options)
    print("loaded:", torch.equal(model.weight.to_local(), trained.weight.to_local()))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
