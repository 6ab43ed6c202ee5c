"""The weights of a checkpoint in one file: torchrun --nproc-per-node 2 -- export.py CHECKPOINT --out weights.pt

FILE.safetensors, which needs that package, in place of FILE.pt. For a model that no process can hold, `fsdp2 convert`
does the same a tensor at a time.
"""

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from sharded import build, end, start
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict


def main() -> None:
    """Load what each rank has of the weights, gather them on rank 0, and write."""
    parser = argparse.ArgumentParser()
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()

    model = build(start())
    weights = get_model_state_dict(model)
    dcp.load({"train": {"model": weights}}, checkpoint_id=args.checkpoint)
    set_model_state_dict(model, weights)
    # All ranks take part, or those that do wait for ever; rank 0 gets the whole, the others an empty dict.
    whole = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if dist.get_rank() == 0:
        new = args.out.with_name(args.out.name + ".new")
        if args.out.suffix == ".safetensors":
            from safetensors.torch import save_file

            save_file(whole, new)
        else:
            torch.save(whole, new)
        new.replace(args.out)  # so that what has this name is whole
    end()


if __name__ == "__main__":
    main()
