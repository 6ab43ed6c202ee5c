"""The newest directory is of a save that died: torchrun --nproc-per-node 2 bad.py"""

import os
import shutil
import tempfile

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.fsdp import fully_shard


def main() -> None:
    dist.init_process_group("gloo")
    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(folder)
    model = nn.Linear(8, 8)
    fully_shard(model)
    dcp.save({"model": model.state_dict()}, checkpoint_id=f"{folder[0]}/step-1")
    if dist.get_rank() == 0:
        shutil.copytree(
            f"{folder[0]}/step-1", f"{folder[0]}/step-2", ignore=shutil.ignore_patterns(".*")
        )  # what is written last
    dist.barrier()

    names = os.listdir(folder[0])
    latest = os.path.join(folder[0], max(names))
    dcp.load({"model": model.state_dict()}, checkpoint_id=latest)
    print("loaded", os.path.basename(latest))

    dist.barrier()
    if dist.get_rank() == 0:
        shutil.rmtree(folder[0])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
