"""The shards of one replica are saved: torchrun --nproc-per-node 2 good.py"""

import shutil
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def main() -> None:
    dist.init_process_group("gloo")
    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(folder)

    mesh = init_device_mesh("cpu", (1, dist.get_world_size()), mesh_dim_names=("dp_replicate", "dp_shard"))
    model = nn.Linear(8, 8, bias=False)
    nn.init.ones_(model.weight)
    fully_shard(model, mesh=mesh)
    group = mesh.get_group("dp_shard")
    if mesh.get_local_rank("dp_replicate") == 0:
        dcp.save({"model": get_model_state_dict(model)}, checkpoint_id=folder[0], process_group=group)
    dist.barrier()

    nn.init.zeros_(model.weight)  # as a new process would have some other values
    state = {"model": get_model_state_dict(model)}
    dcp.load(state, checkpoint_id=folder[0])
    rows = int(state["model"]["weight"].full_tensor().sum() / 8)
    if dist.get_rank() == 0:
        print(f"rows of the weight that were restored: {rows} of 8")
        shutil.rmtree(folder[0])
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
