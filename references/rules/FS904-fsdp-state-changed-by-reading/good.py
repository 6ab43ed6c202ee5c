"""Before the first step the optimizer has nothing to save: torchrun --nproc-per-node 2 good.py"""

import shutil
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.fsdp import fully_shard


def main() -> None:
    dist.init_process_group("gloo")
    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(folder)
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.0)

    model_state = get_model_state_dict(model)
    dcp.save({"model": model_state}, checkpoint_id=f"{folder[0]}/step-0")

    before = model[1].bias.full_tensor().clone()
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
    moved = (model[1].bias.full_tensor() - before).abs().mean()
    if dist.get_rank() == 0:
        print(f"first update at lr 0.1: {moved:.4f}")
        shutil.rmtree(folder[0])
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
