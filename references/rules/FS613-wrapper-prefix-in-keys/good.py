"""Compiled in place, a model keeps its names: torchrun --nproc-per-node 2 good.py"""

import shutil
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint import CheckpointException
from torch.distributed.fsdp import fully_shard


def build(compiled: bool) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    if compiled:
        for layer in model:
            layer.compile(backend="eager")
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    return model


def main() -> None:
    dist.init_process_group("gloo")
    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(folder)

    trained = build(compiled=True)
    dcp.save({"model": trained.state_dict()}, checkpoint_id=folder[0])

    model = build(compiled=False)  # as an evaluation would
    state = model.state_dict()
    try:
        dcp.load({"model": state}, checkpoint_id=folder[0])
        outcome = "loaded"
    except CheckpointException as error:
        outcome = str(error.failures[0][0])
    model.load_state_dict(state)

    if dist.get_rank() == 0:
        print(f"the model without compile: {outcome}")
        shutil.rmtree(folder[0])
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
