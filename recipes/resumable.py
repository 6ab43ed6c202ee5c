"""What is saved, and which checkpoint a run goes on from: what Workflow B adds to a script."""

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from gpt import Model
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.stateful import Stateful
from torch.optim.lr_scheduler import LRScheduler


class TrainState(Stateful):
    """What makes the next step: weights, optimizer, schedule, and how many steps, and so batches, are done."""

    def __init__(self, model: Model, optimizer: torch.optim.Optimizer, scheduler: LRScheduler) -> None:
        self.model, self.optimizer, self.scheduler, self.step = model, optimizer, scheduler, 0

    def state_dict(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer, "scheduler": self.scheduler.state_dict(), "step": self.step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        self.scheduler.load_state_dict(state["scheduler"])
        self.step = state["step"]


class RankState(Stateful):
    """What differs from rank to rank; its key names the rank, for DCP keeps one value a key."""

    def __init__(self) -> None:
        self.key = f"rank-{dist.get_rank()}"

    def state_dict(self) -> dict[str, Any]:
        cuda = torch.cuda.get_rng_state() if torch.cuda.is_available() else torch.empty(0)
        return {"cpu": torch.get_rng_state(), "cuda": cuda}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        torch.set_rng_state(state["cpu"])
        if torch.cuda.is_available():
            torch.cuda.set_rng_state(state["cuda"])


def newest_whole(folder: Path) -> Path | None:
    """The newest checkpoint whose metadata reads, and whose files are as long as it says; rank 0 looks for all."""
    found: list[Path | None] = [None]
    for path in sorted(folder.glob("step-*"), reverse=True) if dist.get_rank() == 0 else ():
        try:
            parts = dcp.FileSystemReader(path).read_metadata().storage_data.values()
            whole = all((path / p.relative_path).stat().st_size >= p.offset + p.length for p in parts)
        except Exception:  # what a crash leaves behind fails to be read in many ways
            whole = False
        if whole:
            found = [path]
            break
    dist.broadcast_object_list(found)
    return found[0]
