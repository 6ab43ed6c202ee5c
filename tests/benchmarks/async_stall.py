"""How long the loop stands still for an asynchronous save, against a synchronous one of the same state.

1 GB of state on two ranks. Steps of the generated script lie between the saves. A save is counted from its call until
the state may change; that includes what it does about the save before it, which has ended by then.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from .ranks import GIGABYTE, arguments, generated, on_ranks, row, touch_memory

ROUNDS = 5  # after one that is not counted


def measure(folder: Path) -> None:
    """Print the row of each asynchronous mode, on rank 0."""
    import torch.distributed as dist

    scripts = {mode: generated(async_mode=mode) for mode in ("disabled", "async", "async_with_pinned_mem")}
    train = scripts["disabled"]
    args: Any = arguments(train, **GIGABYTE)
    device = train.init_distributed()
    mesh = train.build_mesh(args, device)
    model = train.build_model_meta(args, mesh, device)
    state = train.TrainState(model, *train.build_optimizer(model, args))
    data = train.load_data(args)
    checkpointers = {
        mode: script.Checkpointer(folder / mode, 2, "a run", state, script.RankState(device))
        for mode, script in scripts.items()
    }
    seconds: dict[str, list[float]] = {mode: [] for mode in checkpointers}
    for _ in range(ROUNDS + 1):
        for mode, checkpointer in checkpointers.items():
            tokens = train.draw_batch(data, args, state.step, mesh).to(device)
            train.train_step(state, tokens.split(args.micro_batch))
            touch_memory()
            dist.barrier()
            started = time.perf_counter()
            checkpointer.save()
            if mode == "async_with_pinned_mem":
                checkpointer.stager.synchronize_staging()  # as the next optimizer step does
            seconds[mode].append(time.perf_counter() - started)
            if mode != "disabled":
                checkpointer.saving.result()
    for mode, checkpointer in checkpointers.items():
        if mode != "disabled":
            checkpointer.wait()
            if dist.get_rank() == 0:
                print(row(f"stall, `{mode}`", "at most 0.15", seconds[mode][1:], seconds["disabled"][1:]), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    on_ranks(measure)
