"""A trainer class over a dataclass of settings: scheduler, dropout, random state of each rank, epochs."""

import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as DCP
import torch.nn as nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict
from torch.distributed.checkpoint.state_dict import set_model_state_dict, set_optimizer_state_dict
from torch.distributed.fsdp import fully_shard as shard
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler


@dataclass
class TrainConfig:
    width: int = 512
    depth: int = 6
    dropout: float = 0.1
    lr: float = 1e-3
    epochs: int = 10
    batch_size: int = 16
    out_dir: str = "runs/default"
    resume_from: str | None = None


class Layer(nn.Module):
    def __init__(self, width, dropout):
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        return x + self.dropout(torch.relu(self.linear(x)))


class Net(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.stem = nn.Linear(64, cfg.width)
        self.layers = nn.ModuleList([Layer(cfg.width, cfg.dropout) for _ in range(cfg.depth)])
        self.out = nn.Linear(cfg.width, 1)

    def forward(self, x):
        x = self.stem(x)
        for layer in self.layers:
            x = layer(x)
        return self.out(x).squeeze(-1)


class Trainer:
    def __init__(self, cfg: TrainConfig, dataset):
        self.cfg = cfg
        self.rank = dist.get_rank()
        self.epoch = 0
        self.model = self._build_model()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=cfg.lr)
        self.scheduler = CosineAnnealingLR(self.optimizer, T_max=cfg.epochs)
        self.sampler = DistributedSampler(dataset, shuffle=True, drop_last=True)
        self.loader = DataLoader(dataset, batch_size=cfg.batch_size, sampler=self.sampler, num_workers=2)
        if cfg.resume_from:
            self.load(cfg.resume_from)

    def _build_model(self):
        torch.manual_seed(1234)
        model = Net(self.cfg)
        for layer in model.layers:
            shard(layer)
        shard(model)
        torch.manual_seed(1234 + self.rank)
        return model

    def _state(self):
        return {
            "model": get_model_state_dict(self.model),
            "optimizer": get_optimizer_state_dict(self.model, self.optimizer),
            "scheduler": self.scheduler.state_dict(),
            "epoch": self.epoch,
        }

    def save(self):
        path = os.path.join(self.cfg.out_dir, f"epoch_{self.epoch:04d}")
        DCP.save(self._state(), checkpoint_id=path)  # expect: FS607

    def load(self, path):
        state = self._state()
        DCP.load(state, checkpoint_id=path)
        set_model_state_dict(self.model, state["model"])
        set_optimizer_state_dict(self.model, self.optimizer, state["optimizer"])
        self.scheduler.load_state_dict(state["scheduler"])
        self.epoch = state["epoch"]

    def train_epoch(self):
        self.model.train()
        self.sampler.set_epoch(self.epoch)
        total = torch.zeros((), device="cuda")
        for x, y in self.loader:
            loss = nn.functional.mse_loss(self.model(x.cuda()), y.cuda())
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            total += loss.detach()
        self.scheduler.step()
        dist.all_reduce(total)
        return total.item() / len(self.loader) / dist.get_world_size()

    def fit(self):
        while self.epoch < self.cfg.epochs:
            loss = self.train_epoch()
            self.epoch += 1
            if self.rank == 0:
                print(f"epoch {self.epoch} loss {loss:.4f}")
            self.save()


def make_dataset():
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(8192, 64, generator=generator)
    return torch.utils.data.TensorDataset(x, x.sum(-1))


def main():
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    dist.init_process_group(backend="nccl")
    try:
        Trainer(TrainConfig(resume_from=os.environ.get("RESUME_FROM")), make_dataset()).fit()
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
