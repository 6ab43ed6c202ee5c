"""The step time of a generated script under the probe against the same without it.

One process a rank runs the script's own `main`; from one round of steps to the next the probe records what a proof
compares, or lets every call pass through.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from .ranks import RANKS, arguments, generated, on_ranks, row, run_main

ROUNDS, STEPS = 26, 5  # rounds, of which the first of either kind is not counted, of so many steps


def measure(folder: Path) -> None:
    """Print the row, on rank 0."""
    import torch.distributed as dist
    from pytorch_fsdp2_dcp.validate.launch.job import Probe
    from pytorch_fsdp2_dcp.validate.launch.places import Settings
    from pytorch_fsdp2_dcp.validate.probe.install import install

    scratch = folder / "probe"
    (scratch / "records").mkdir(parents=True, exist_ok=True)
    settings = Settings(
        script="train.py", args=(), nproc=RANKS, cwd=str(folder), scratch=str(scratch), probe=Probe(figures=True)
    )
    observer = install(settings, int(os.environ["RANK"]))  # before the script's imports, which take what it wraps
    train = generated()
    options = {"steps": ROUNDS * STEPS + 1, "checkpoint-interval": 10**6, "micro-batch": 8, "log": folder / "log"}
    arguments(train, **options, **{"checkpoint-dir": folder / "checkpoints"})
    script_step = train.train_step
    seconds: tuple[list[float], list[float]] = [], []  # for a round without the probe, and with it
    began: list[float] = []

    def timed_step(state: Any, micro_batches: Any) -> Any:
        if state.step % STEPS == 0:
            number = state.step // STEPS
            dist.barrier()
            if began:
                seconds[number % 2 == 0].append(time.perf_counter() - began.pop())
            observer.recorder._pid = os.getpid() if number % 2 else 0  # a process that is not its own is let alone
            if number == ROUNDS and dist.get_rank() == 0:
                without, under = ([t / STEPS for t in times[1:]] for times in seconds)
                print(
                    row("step under the probe of `validate`", "at most 1.10", under, without),
                    file=sys.__stdout__,
                    flush=True,
                )
            dist.barrier()
            began.append(time.perf_counter())
        return script_step(state, micro_batches)

    run_main(train, timed_step)


if __name__ == "__main__":
    on_ranks(measure)
