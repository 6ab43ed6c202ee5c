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


def whole(path: Path) -> bool:
    """Whether a checkpoint's metadata reads, and its files are as long as it says."""
    try:
        parts = dcp.FileSystemReader(path).read_metadata().storage_data.values()
        return all((path / part.relative_path).stat().st_size >= part.offset + part.length for part in parts)
    except Exception:  # what a crash leaves behind fails to be read in many ways
        return False


def newest_whole(folder: Path) -> Path | None:
    """The newest whole checkpoint; rank 0 looks for all, who might not see the same."""
    found: list[Path | None] = [None]
    if dist.get_rank() == 0:
        found = [next(filter(whole, sorted(folder.glob("step-*"), reverse=True)), None)]
    dist.broadcast_object_list(found)
    return found[0]


def load(state: dict[str, Stateful], path: Path) -> None:
    """Restore in place, on any number of ranks; what is of a rank, only on as many as there were."""
    keys = dcp.FileSystemReader(path).read_metadata().state_dict_metadata
    ranks = {key.partition(".")[0] for key in keys if key.startswith("rank-")}
    if len(ranks) != dist.get_world_size():
        state = {"train": state["train"]}
    dcp.load(state, checkpoint_id=path)
