"""The state is gathered to rank 0, which then writes alone: torchrun --nproc-per-node 2 bad.py"""

import shutil
import tempfile

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard


def main() -> None:
    dist.init_process_group("gloo")
    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(folder)
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
    for layer in model:
        fully_shard(layer)
    fully_shard(model)

    state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    dcp.save({"model": state}, checkpoint_id=folder[0])

    if dist.get_rank() == 0:
        stored = dcp.FileSystemReader(folder[0]).read_metadata().storage_data
        files = {info.relative_path for index, info in stored.items() if index.offset is not None}  # of tensors
        print(f"files that hold weights, one from each rank that wrote: {len(files)}")
        shutil.rmtree(folder[0])
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
