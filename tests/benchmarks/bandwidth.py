"""Saving and loading by the generated script, against `torch.save` and `torch.load` of the same bytes on each rank.

1 GB of state on two ranks, files in the page cache. Both sides wait until what they wrote is on the disk, keep the two
newest, and load into the tensors that are there.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .ranks import GIGABYTE, arguments, generated, on_ranks, row, touch_memory

ROUNDS = 8  # after one that is not counted


def measure(folder: Path) -> None:
    """Print the rows of saving and of loading, on rank 0."""
    import torch
    import torch.distributed as dist
    from torch.distributed.tensor import DTensor

    train = generated(async_mode="disabled")
    args: Any = arguments(train, **GIGABYTE)
    device = train.init_distributed()
    mesh = train.build_mesh(args, device)
    model = train.build_model_meta(args, mesh, device)
    state = train.TrainState(model, *train.build_optimizer(model, args))
    checkpointer = train.Checkpointer(folder / "dcp", 2, "a run", state, train.RankState(device))
    tokens = train.draw_batch(train.load_data(args), args, 0, mesh).to(device)
    train.train_step(state, tokens.split(args.micro_batch))
    plain: list[Path] = []

    def local() -> list[torch.Tensor]:
        optimizer = [value for values in state.optimizer.state.values() for value in values.values()]
        tensors = [*model.parameters(), *optimizer]
        return [tensor.detach().to_local() if isinstance(tensor, DTensor) else tensor for tensor in tensors]

    def save_plainly() -> None:
        plain.append(folder / f"plain-{len(plain)}-{dist.get_rank()}.pt")
        with plain[-1].open("wb") as file:
            torch.save(local(), file)
            os.fsync(file.fileno())
        for path in plain[-3:-2]:
            path.unlink()

    def load_plainly() -> None:
        for tensor, loaded in zip(local(), torch.load(plain[-1]), strict=True):
            tensor.copy_(loaded)

    def save() -> None:
        state.step += 1
        checkpointer.save()

    jobs: dict[str, tuple[Callable[[], None], Callable[[], None]]] = {
        "save": (save, save_plainly),
        "load": (lambda: checkpointer.resume(0), load_plainly),
    }
    seconds: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in jobs}
    for index in range(ROUNDS + 1):
        for name, both in jobs.items():
            for side in (0, 1) if index % 2 else (1, 0):  # who is first finds other memory and another part of the disk
                touch_memory()
                dist.barrier()
                started = time.perf_counter()
                both[side]()
                dist.barrier()
                seconds[name][side].append(time.perf_counter() - started)
    if dist.get_rank() == 0:
        for name, (ours, theirs) in seconds.items():
            print(row(f"{name} bandwidth", "at least 0.90", ours[1:], theirs[1:], inverse=True), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    on_ranks(measure)
