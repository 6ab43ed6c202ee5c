"""Weights saved in float32 are loaded into bfloat16: torchrun --nproc-per-node 2 bad.py"""

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.fsdp import fully_shard


def build(dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)).to(dtype)
    for layer in (model[0], model[2]):
        fully_shard(layer)
    return fully_shard(model)


def main() -> None:
    dist.init_process_group("gloo")
    first = build(torch.float32)
    dcp.save({"model": get_model_state_dict(first)}, checkpoint_id="checkpoint")

    model = build(torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    state = {"model": get_model_state_dict(model)}
    dcp.load(state, checkpoint_id="checkpoint")
    set_model_state_dict(model, state["model"])
    pairs = zip(first.parameters(), model.parameters(), strict=True)
    equal = [torch.equal(x.full_tensor(), y.full_tensor().float()) for x, y in pairs]
    if dist.get_rank() == 0:
        print(f"tensors of weights that are as they were saved: {sum(equal)} of {len(equal)}")
    torch.manual_seed(1 + dist.get_rank())
    dtype = next(model.parameters()).dtype
    model(torch.randn(4, 8, dtype=dtype)).float().pow(2).mean().backward()
    optimizer.step()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
