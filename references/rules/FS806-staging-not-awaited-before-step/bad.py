"""The optimizer steps while the weights are being copied: torchrun --nproc-per-node 2 bad.py"""

import shutil
import tempfile
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.fsdp import fully_shard


class Settings:
    """Stands for all that takes long to copy."""

    def __deepcopy__(self, memo):
        time.sleep(0.5)
        return self


def main() -> None:
    dist.init_process_group("gloo")
    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(folder)
    group = dist.new_group(backend="gloo")
    model = nn.Linear(8, 8, bias=False)
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    model(torch.ones(2, 8)).sum().backward()

    before = model.weight.to_local().clone()
    stager = DefaultStager(StagingOptions(use_pinned_memory=False, use_non_blocking_copy=False))
    state = {"settings": Settings(), "model": model.state_dict()}
    response = dcp.async_save(state, checkpoint_id=folder[0], process_group=group, async_stager=stager)
    optimizer.step()
    response.upload_completion.result()
    stager.close()

    loaded = {"model": model.state_dict()}
    dcp.load(loaded, checkpoint_id=folder[0])
    print("saved the weights of the call:", torch.equal(model.weight.to_local(), before))
    dist.barrier()
    if dist.get_rank() == 0:
        shutil.rmtree(folder[0])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
