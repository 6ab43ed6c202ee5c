"""Ranks of two machines share a key: torchrun --nproc-per-node 2 bad.py"""

import os
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.fsdp import fully_shard

os.environ["LOCAL_RANK"] = "0"  # as on two machines of one GPU each


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = fully_shard(nn.Linear(8, 8))
    torch.manual_seed(100 + dist.get_rank())
    key = f"rng_{os.environ['LOCAL_RANK']}"
    folder = [tempfile.mkdtemp()]
    dist.broadcast_object_list(folder)
    dcp.save({"model": get_model_state_dict(model), key: torch.get_rng_state()}, checkpoint_id=folder[0])

    goes_on = torch.rand(1).item()  # what the run would draw next
    state = {"model": get_model_state_dict(model), key: torch.get_rng_state()}
    dcp.load(state, checkpoint_id=folder[0])
    torch.set_rng_state(state[key])
    same = torch.tensor([float(torch.rand(1).item() == goes_on)])
    dist.all_reduce(same)
    if dist.get_rank() == 0:
        print(f"ranks that go on with the random numbers of their own: {int(same)} of 2")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
