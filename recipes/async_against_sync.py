"""How long training stands still for a save: torchrun --nproc-per-node 2 -- async_against_sync.py --mebibytes 256

It saves the same state both ways, in turn. An asynchronous save holds training up for as long as it copies the state,
and then writes while the next steps are made, which take the longer for it.
"""

import argparse
import shutil
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from sharded import end, start
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.fsdp import fully_shard

STEPS, ROUNDS = 4, 3


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--mebibytes", type=int, default=256, help="of parameters and optimizer state, on all ranks")
    args = parser.parse_args()

    device = start()
    width = 512
    layers = max(1, args.mebibytes * 2**20 // (width * width * 4 * 3))  # each value has two moments beside it
    model = nn.Sequential(*(nn.Linear(width, width, bias=False, device=device) for _ in range(layers)))
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters())
    group = dist.new_group(backend="gloo")
    x = torch.randn(8, width, device=device)

    def train(steps: int) -> None:
        for _ in range(steps):
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        if device.type == "cuda":
            torch.cuda.synchronize()

    folder = [tempfile.mkdtemp(prefix="save-") if dist.get_rank() == 0 else ""]
    dist.broadcast_object_list(folder)
    stood, stepped = dict.fromkeys(("dcp.save", "dcp.async_save"), 0.0), dict.fromkeys(("", "dcp.async_save"), 0.0)
    train(STEPS)  # and have the optimizer's state before the first save
    for number in range(ROUNDS):
        for how in stood:
            path = Path(folder[0], f"{how} {number}")
            dist.barrier()
            began = time.perf_counter()
            model_state, optimizer_state = get_state_dict(model, optimizer)
            state = {"model": model_state, "optimizer": optimizer_state}
            if how == "dcp.save":
                dcp.save(state, checkpoint_id=path)
            else:
                saving = dcp.async_save(state, checkpoint_id=path, process_group=group)
            stood[how] += time.perf_counter() - began
            dist.barrier()
            began = time.perf_counter()
            train(STEPS)
            stepped["" if how == "dcp.save" else how] += time.perf_counter() - began
            if how == "dcp.async_save":
                saving.result()
    if dist.get_rank() == 0:
        for how, seconds in stood.items():
            print(f"{how:15} holds training up for {seconds / ROUNDS:.3f} s")
        print(f"{stood['dcp.async_save'] / stood['dcp.save']:.2f} times as long, where nothing is waited for")
        print(f"{stepped['dcp.async_save'] / stepped['']:.2f} times as long is a step while it is written")
        shutil.rmtree(folder[0])
    end()


if __name__ == "__main__":
    main()
