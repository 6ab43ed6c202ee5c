"""A trainer that is itself what is saved: best loss, shuffling and settings beside the state, an average on the side."""

import argparse
import copy
import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_state_dict,
)
from torch.distributed.fsdp import fully_shard


@dataclass
class Settings:
    width: int = 128
    depth: int = 4
    lr: float = 2e-3
    steps: int = 400
    every: int = 20
    folder: str = "runs/tagger"
    resume: str = ""


class Tagger(nn.Module):
    def __init__(self, settings):
        super().__init__()
        self.embed = nn.Embedding(512, settings.width)
        layers = [nn.Sequential(nn.Linear(settings.width, settings.width), nn.GELU()) for _ in range(settings.depth)]
        self.layers = nn.ModuleList(layers)
        self.tags = nn.Linear(settings.width, 32)

    def forward(self, words):
        x = self.embed(words)
        for layer in self.layers:
            x = x + layer(x)
        return self.tags(x)


def shard(model):
    for layer in model.layers:
        fully_shard(layer)
    return fully_shard(model)


def on_rank_0(look):
    answer = [look() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(answer)
    return answer[0]


class Trainer:
    def __init__(self, settings):
        self.settings = settings
        torch.manual_seed(11)
        self.model = Tagger(settings)
        self.average = copy.deepcopy(self.model)
        shard(self.model)
        shard(self.average)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=settings.lr)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, T_max=settings.steps)
        self.drawing = torch.Generator().manual_seed(11)  # the same on all ranks: each takes its rows of what is drawn
        self.best = {"loss": math.inf, "step": 0}
        self.step = 0

    def state_dict(self):
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {
            "model": model,
            "optimizer": optimizer,
            "average": get_model_state_dict(self.average),
            "scheduler": self.scheduler.state_dict(),
            "step": self.step,
            "best": dict(self.best),
            "drawing": self.drawing.get_state(),
        }

    def load_state_dict(self, state):
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        set_model_state_dict(self.average, state["average"])
        self.scheduler.load_state_dict(state["scheduler"])
        self.step = state["step"]
        self.best = state["best"]
        self.drawing.set_state(state["drawing"])

    def batch(self):
        words = torch.randint(0, 512, (16 * dist.get_world_size(), 24), generator=self.drawing)
        return words.chunk(dist.get_world_size())[dist.get_rank()]

    def train_step(self):
        words = self.batch()
        logits = self.model(words)
        loss = F.cross_entropy(logits.flatten(0, 1), (words % 32).flatten())
        loss.backward()
        self.optimizer.step()
        self.scheduler.step()
        self.optimizer.zero_grad()
        with torch.no_grad():
            for mine, theirs in zip(self.average.parameters(), self.model.parameters(), strict=True):
                mine.lerp_(theirs, 0.01)
        self.step += 1
        total = loss.detach()
        dist.all_reduce(total)
        return total.item() / dist.get_world_size()

    def fit(self):
        if self.settings.resume:
            dcp.load({"train": self}, checkpoint_id=self.settings.resume)
        stop = False
        while self.step < self.settings.steps and not stop:
            loss = self.train_step()
            if loss < self.best["loss"]:
                self.best = {"loss": loss, "step": self.step}
            stop = math.isnan(loss)
            if self.step % self.settings.every == 0:
                self.save()

    def save(self):
        path = Path(self.settings.folder) / f"step-{self.step:06d}"
        if on_rank_0(lambda: (path / ".metadata").exists()):
            raise FileExistsError(f"{path} is there already")
        dcp.save({"train": self, "settings": json.dumps(asdict(self.settings))}, checkpoint_id=path)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", default="runs/tagger")
    parser.add_argument("--resume", default="")
    parser.add_argument("--steps", type=int, default=400)
    dist.init_process_group("gloo")
    Trainer(Settings(**vars(parser.parse_args()))).fit()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
