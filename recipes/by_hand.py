"""One file of weights into a sharded model and out of it without helpers, by DTensor alone ("plan A").

    torchrun --nproc-per-node 2 -- by_hand.py WEIGHTS.pt --out AGAIN.pt

For when each tensor is to be renamed, converted or streamed on its way. Where none is, `set_model_state_dict` and
`get_model_state_dict` do this, and the optimizer's state as well: see sharded.py and export.py.
"""

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
from gpt import Model
from sharded import end, start
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor


def load(model: nn.Module, path: Path, device: torch.device) -> None:
    """Give each rank its part of each tensor in the file, which only rank 0 reads."""
    whole: dict[str, Tensor] = torch.load(path, weights_only=True, mmap=True) if dist.get_rank() == 0 else {}
    parts: dict[str, Tensor] = {}
    for name, meta in model.state_dict().items():  # in the same order on all ranks: each tensor is a collective
        value = torch.empty(meta.shape, dtype=meta.dtype, device=device)
        if name in whole:
            value.copy_(whole[name])
        # Rank 0's value is divided as the parameter is; what others pass only says how large it is.
        parts[name] = nn.Parameter(distribute_tensor(value, meta.device_mesh, meta.placements))
    model.load_state_dict(parts, assign=True)  # the parameters were on meta, and become these


@torch.no_grad()
def save(model: nn.Module, path: Path) -> None:
    """Write all tensors whole; all ranks gather them, one after the other, and rank 0 alone keeps them."""
    whole: dict[str, Tensor] = {}
    for name, part in model.state_dict().items():
        value = part.full_tensor() if isinstance(part, DTensor) else part
        if dist.get_rank() == 0:
            whole[name] = value.cpu()
    if dist.get_rank() == 0:
        torch.save(whole, path)


def main() -> None:
    """In, and out."""
    parser = argparse.ArgumentParser()
    parser.add_argument("weights", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()

    device = start()
    with torch.device("meta"):
        model = Model()
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    load(model, args.weights, device)
    save(model, args.out)
    end()


if __name__ == "__main__":
    main()
