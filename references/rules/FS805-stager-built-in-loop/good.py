"""One stager for all saves: torchrun --nproc-per-node 2 good.py"""

import gc
import shutil
import tempfile

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.fsdp import fully_shard


def main() -> None:
    dist.init_process_group("gloo")
    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(folder)
    group = dist.new_group(backend="gloo")
    model = nn.Linear(8, 8)
    fully_shard(model)
    gc.disable()  # what is left behind stays until the collector comes by, whenever that is

    options = StagingOptions(use_pinned_memory=False, use_non_blocking_copy=False)
    stager = DefaultStager(options)
    for step in range(4):
        state = {"model": model.state_dict()}
        response = dcp.async_save(state, checkpoint_id=f"{folder[0]}/{step}", process_group=group, async_stager=stager)
        response.upload_completion.result()
    kept = sum(type(value).__name__ == "StateDictStager" for value in gc.get_objects())
    print("copies of the state in memory:", kept)

    dist.barrier()
    if dist.get_rank() == 0:
        shutil.rmtree(folder[0])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
