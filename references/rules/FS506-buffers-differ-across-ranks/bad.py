"""A checkpoint keeps one rank's running statistics: torchrun --nproc-per-node 2 bad.py"""

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.fsdp import fully_shard


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 8))
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    torch.manual_seed(1 + dist.get_rank())
    for _ in range(3):
        model(torch.randn(4, 8) + dist.get_rank())
    saved = model[1].running_mean.clone()
    dcp.save({"model": get_model_state_dict(model)}, checkpoint_id="checkpoint")

    state = {"model": get_model_state_dict(model)}
    dcp.load(state, checkpoint_id="checkpoint")
    set_model_state_dict(model, state["model"])
    same: list[bool] = [False] * dist.get_world_size()
    dist.all_gather_object(same, torch.equal(model[1].running_mean, saved))
    if dist.get_rank() == 0:
        print(f"ranks that get back the statistics they saved: {sum(same)} of {len(same)}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
