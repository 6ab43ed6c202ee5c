"""The handler takes what a failed load raises, too: torchrun --nproc-per-node 2 good.py"""

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint import CheckpointException
from torch.distributed.fsdp import fully_shard


def main() -> None:
    dist.init_process_group("gloo")
    model = nn.Linear(8, 8)
    fully_shard(model)
    try:
        dcp.load({"model": model.state_dict()}, checkpoint_id="there-is-none")
    except (Exception, CheckpointException) as error:
        print("starts from nothing:", type(error).__name__)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
