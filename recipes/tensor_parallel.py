"""FSDP and tensor parallelism, on 2 x 2 ranks: torchrun --nproc-per-node 4 -- tensor_parallel.py --data TEXT

It trains as b_blocking.py does, and goes on from the checkpoints of that, as that does from its own: they are of the
same tensors by the same names, however these were divided.
"""

import signal

import torch
import torch.distributed as dist
from b_blocking import arguments, train
from gpt import Model
from sharded import end, start, weights_of_one_process
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

# Every module with parameters is in a plan, so that all gradients lie on one mesh, and can be clipped together.
# Between the modules each rank has its part of the sequence, Shard(1).
MODEL = {
    "embed": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
    "position": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(0)),  # it has no batch dimension
    "norm": SequenceParallel(),
    "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
}
BLOCK = {
    "norm1": SequenceParallel(),
    "qkv": ColwiseParallel(input_layouts=Shard(1)),
    "out": RowwiseParallel(output_layouts=Shard(1)),
    "norm2": SequenceParallel(),
    "mlp.0": ColwiseParallel(input_layouts=Shard(1)),
    "mlp.2": RowwiseParallel(output_layouts=Shard(1)),
}


def build(device: torch.device, mesh: DeviceMesh) -> Model:
    """As `sharded.build`, over two dimensions: first each tensor is divided, then what is left of it is sharded."""
    with torch.device("meta"):
        model = Model()
    parallelize_module(model, mesh["tp"], MODEL)
    for block in model.blocks:
        parallelize_module(block, mesh["tp"], BLOCK)
        fully_shard(block, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
    model.to_empty(device=device)
    weights_of_one_process(model)
    return model


def main() -> None:
    """Train for some epochs."""
    args = arguments()
    signals: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: signals.append(number))
    device = start()
    mesh = init_device_mesh(device.type, (dist.get_world_size() // 2, 2), mesh_dim_names=("dp", "tp"))
    model = build(device, mesh)
    # Ranks that share a model read the same: data is divided among the replicas, not among all ranks.
    train(model, device, args, mesh["dp"].size(), mesh["dp"].get_local_rank(), signals)
    end()


if __name__ == "__main__":
    main()
