"""The batches that were trained on are passed over: torchrun --nproc-per-node 2 good.py"""

import shutil
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

SAVED, BATCHES = 2, 4  # steps


def build():
    model = nn.Sequential(nn.Linear(1, 8), nn.Linear(8, 1))
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    data = TensorDataset(torch.arange(16.0).reshape(16, 1))
    loader = DataLoader(data, batch_size=2, sampler=DistributedSampler(data, shuffle=False))
    return model, torch.optim.AdamW(model.parameters()), loader


def train(model, optimizer, loader, start, end, folder, seen):
    for step, (batch,) in enumerate(loader):
        if step < start:
            continue
        if step == end:
            break
        model(batch / 16).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        seen += batch.flatten().int().tolist()
        if step + 1 == SAVED:
            model_state, optimizer_state = get_state_dict(model, optimizer)
            state = {"model": model_state, "optimizer": optimizer_state, "step": step + 1}
            dcp.save(state, checkpoint_id=f"{folder}/{step}")


def main() -> None:
    dist.init_process_group("gloo")
    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(folder)
    seen: list[int] = []
    train(*build(), 0, SAVED, folder[0], seen)

    model, optimizer, loader = build()  # as a new process would
    model_state, optimizer_state = get_state_dict(model, optimizer)
    state = {"model": model_state, "optimizer": optimizer_state, "step": 0}
    dcp.load(state, checkpoint_id=f"{folder[0]}/{SAVED - 1}")
    set_state_dict(model, optimizer, model_state_dict=model_state, optim_state_dict=optimizer_state)
    train(model, optimizer, loader, state["step"], BATCHES, folder[0], seen)

    if dist.get_rank() == 0:
        print(f"samples seen by rank 0, of 8 that are its own: {len(set(seen))}")
        shutil.rmtree(folder[0])
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
