"""Half of the model is in no file: torchrun --nproc-per-node 2 bad.py"""

import shutil
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.fsdp import fully_shard


def main() -> None:
    dist.init_process_group("gloo")
    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(folder)

    model = nn.Linear(8, 8, bias=False)
    nn.init.constant_(model.weight[:4], 1.0)  # the part of rank 0
    nn.init.constant_(model.weight[4:], 2.0)  # the part of rank 1
    fully_shard(model)

    state = {name: tensor.to_local() for name, tensor in model.state_dict().items()}
    dcp.save({"model": state}, checkpoint_id=folder[0])
    nn.init.zeros_(model.weight)
    dcp.load({"model": state}, checkpoint_id=folder[0])

    whole = model.weight.full_tensor()
    if dist.get_rank() == 0:
        print(f"rows restored, of 8: {sum(row[0] == value for row, value in zip(whole, [1, 1, 1, 1, 2, 2, 2, 2]))}")
        shutil.rmtree(folder[0])
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
