"""The step time of a generated script against the plainest FSDP2 loop that computes the same.

The script's own `main` runs, with its data, log, signals and schedule. Between its steps, in the same processes, the
plain loop trains a second model of the same class on the same batches.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

from .ranks import arguments, generated, on_ranks, row, run_main

ROUNDS, STEPS = 25, 5  # rounds, of which the first is not counted, of so many steps of each loop


class PlainLoop:
    """FSDP2 with nothing around it; the model, its initial values, the optimizer and the batches are the script's."""

    def __init__(self, train: ModuleType, args: Any) -> None:
        import torch

        device = torch.device("cpu")
        self.train, self.args = train, args
        self.mesh = train.build_mesh(args, device)
        self.model = train.build_model_meta(args, self.mesh, device)
        self.optimizer, self.scheduler = train.build_optimizer(self.model, args)
        self.data = train.load_data(args)

    def run(self, first: int, steps: int) -> None:
        from torch import nn

        for step in range(first, first + steps):
            tokens = self.train.draw_batch(self.data, self.args, step, self.mesh)
            logits = self.model(tokens[:, :-1])
            nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.scheduler.step()
            self.optimizer.zero_grad()


def measure(folder: Path) -> None:
    """Print the row, on rank 0."""
    import torch.distributed as dist

    train = generated()
    options = {"steps": ROUNDS * STEPS + 1, "checkpoint-interval": 10**6, "micro-batch": 8, "log": folder / "log"}
    args = arguments(train, **options, **{"checkpoint-dir": folder / "checkpoints"})
    script_step = train.train_step
    ours: list[float] = []  # seconds for a round
    theirs: list[float] = []
    plain: list[PlainLoop] = []
    began: list[float] = []  # when the script's round did

    def timed_step(state: Any, micro_batches: Any) -> Any:
        """Between two rounds of the script's `main`, a round of the plain loop."""
        if state.step % STEPS == 0:
            if began:
                ours.append(time.perf_counter() - began.pop())
            else:
                plain.append(PlainLoop(train, args))
            if state.step < ROUNDS * STEPS:
                dist.barrier()
                started = time.perf_counter()
                plain[0].run(state.step, STEPS)
                theirs.append(time.perf_counter() - started)
            elif dist.get_rank() == 0:
                seconds = ([t / STEPS for t in times[1:]] for times in (ours, theirs))
                print(row("step", "at most 1.02", *seconds), file=sys.__stdout__, flush=True)
            dist.barrier()
            began.append(time.perf_counter())
        return script_step(state, micro_batches)

    run_main(train, timed_step)


if __name__ == "__main__":
    on_ranks(measure)
