"""Parameters on the CPU between uses, a group for each kind of device, warm-up by a LambdaLR that is saved."""

import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard

OUT = Path("offload-out")


def warmup(step):
    return min(1.0, (step + 1) / 100)


def latest():
    """What rank 0 reads from the pointer that is written after each save."""
    pointer = OUT / "latest"
    answer = [pointer.read_text().strip() if dist.get_rank() == 0 and pointer.exists() else ""]
    dist.broadcast_object_list(answer, src=0)
    return OUT / answer[0] if answer[0] else None


def save(model, optimizer, step):
    model_state, optim_state = get_state_dict(model, optimizer, options=StateDictOptions(cpu_offload=True))
    state = {"model": model_state, "optim": optim_state, "step": step}
    dcp.save(state, checkpoint_id=OUT / f"step{step}")  # expect: FS605
    if dist.get_rank() == 0:
        temporary = OUT / "latest.tmp"
        temporary.write_text(f"step{step}")
        temporary.replace(OUT / "latest")


def main():
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("cpu:gloo,cuda:nccl")
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(2048, 2048) for _ in range(10)])
    for layer in model:
        fully_shard(layer, offload_policy=CPUOffloadPolicy())
    fully_shard(model, offload_policy=CPUOffloadPolicy())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, warmup)
    step = 0
    path = latest()
    if path is not None:
        model_state, optim_state = get_state_dict(model, optimizer)
        state = {"model": model_state, "optim": optim_state, "step": step}
        dcp.load(state, checkpoint_id=path)
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optim"])
        step = state["step"]
    while step < 1000:
        g = torch.Generator().manual_seed(step * dist.get_world_size() + dist.get_rank())
        x = torch.randn(8, 2048, generator=g).cuda()
        model(x).pow(2).mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        step += 1
        if step % 200 == 0:
            save(model, optimizer, step)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
