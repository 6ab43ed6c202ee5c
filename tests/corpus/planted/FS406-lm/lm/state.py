import re
import shutil
from pathlib import Path

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.stateful import Stateful


class TrainState(Stateful):
    """All that a run needs to go on."""

    def __init__(self, model, optimizer, scheduler):
        self.model = model
        self.optimizer = optimizer
        self.scheduler = scheduler
        self.step = 0

    def state_dict(self):
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer, "scheduler": self.scheduler.state_dict(), "step": self.step}

    def load_state_dict(self, state_dict):
        set_state_dict(
            self.model,
            self.optimizer,
            model_state_dict=state_dict["model"],
            optim_state_dict=state_dict["optimizer"],
        )
        self.scheduler.load_state_dict(state_dict["scheduler"])
        self.step = state_dict["step"]


class Manager:
    def __init__(self, folder, keep):
        self.folder = Path(folder)
        self.keep = keep

    def whole(self):
        found = [p for p in self.folder.glob("step-*") if (p / ".metadata").is_file()]
        return sorted(found, key=lambda p: int(re.findall(r"\d+", p.name)[-1]))

    def save(self, state):
        dcp.save({"train": state}, checkpoint_id=self.folder / f"step-{state.step}")
        if dist.get_rank() == 0:
            for old in self.whole()[: -self.keep]:
                shutil.rmtree(old)

    def resume(self, state):
        chosen = [None]
        if dist.get_rank() == 0:
            whole = self.whole()
            chosen[0] = whole[-1] if whole else None
        dist.broadcast_object_list(chosen)
        if chosen[0] is not None:
            dcp.load({"train": state}, checkpoint_id=chosen[0])
        return chosen[0] is not None
