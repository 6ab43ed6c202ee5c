"""All ranks gather, rank 0 writes the whole: torchrun --nproc-per-node 2 good.py"""

import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor


def main() -> None:
    dist.init_process_group("gloo")
    model = nn.Linear(8, 8)
    fully_shard(model)

    state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if dist.get_rank() == 0:
        with tempfile.TemporaryDirectory() as folder:
            torch.save(state, Path(folder) / "model.pt")
            saved = torch.load(Path(folder) / "model.pt", weights_only=False)
        held = sum(t.to_local().numel() if isinstance(t, DTensor) else t.numel() for t in saved.values())
        print(f"numbers in the file: {held} of {sum(p.numel() for p in model.parameters())}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
