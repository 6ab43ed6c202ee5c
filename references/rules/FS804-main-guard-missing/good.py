"""Only the program itself runs main, not who imports it: torchrun --nproc-per-node 2 good.py"""

import shutil
import tempfile

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType
from torch.distributed.fsdp import fully_shard


def main() -> None:
    dist.init_process_group("gloo")
    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(folder)
    model = nn.Linear(8, 8)
    fully_shard(model)

    state = {"model": model.state_dict()}
    future = dcp.async_save(state, checkpoint_id=folder[0], async_checkpointer_type=AsyncCheckpointerType.PROCESS)
    future.result()

    if dist.get_rank() == 0:
        print("saved")
        shutil.rmtree(folder[0])
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
