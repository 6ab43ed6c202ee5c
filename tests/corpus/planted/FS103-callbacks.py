"""A loop that only calls callbacks: logging on rank 0, checkpoints on all ranks, early stopping by agreement."""

import os
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def is_main():
    return dist.get_rank() == 0


class Callback:
    def on_step_end(self, loop):
        pass

    def on_epoch_end(self, loop):
        pass


class Logger(Callback):
    def __init__(self, every=20):
        self.every, self.started = every, time.time()

    def on_step_end(self, loop):
        if loop.step % self.every == 0:
            mean = loop.loss.detach().clone()
            dist.all_reduce(mean, op=dist.ReduceOp.AVG)
            if is_main():
                print(f"{loop.step} loss {mean.item():.4f} after {time.time() - self.started:.0f} s")


class Checkpoint(Callback):
    def __init__(self, folder):
        self.folder = folder

    def on_epoch_end(self, loop):
        if is_main():
            os.makedirs(self.folder, exist_ok=True)
        dist.barrier()
        model, optim = get_state_dict(loop.model, loop.optimizer)
        state = {"model": model, "optim": optim, "scheduler": loop.scheduler.state_dict(), "epoch": loop.epoch}
        dcp.save(state, checkpoint_id=f"{self.folder}/epoch{loop.epoch}")


class EarlyStopping(Callback):
    def __init__(self, patience):
        self.started, self.patience = time.time(), patience

    def on_epoch_end(self, loop):
        loop.should_stop = time.time() - self.started > self.patience


class Loop:
    def __init__(self, model, optimizer, scheduler, loader, callbacks):
        self.model, self.optimizer, self.scheduler = model, optimizer, scheduler
        self.loader, self.callbacks = loader, callbacks
        self.step = self.epoch = 0
        self.loss = None
        self.should_stop = False

    def emit(self, name):
        for callback in self.callbacks:
            getattr(callback, name)(self)

    def run(self, epochs):
        for self.epoch in range(epochs):
            self.loader.sampler.set_epoch(self.epoch)
            for x, y in self.loader:
                self.loss = nn.functional.cross_entropy(self.model(x.cuda()), y.cuda())  # expect: FS103
                self.loss.backward()
                self.optimizer.step()
                self.optimizer.zero_grad()
                self.step += 1
                self.emit("on_step_end")
            self.scheduler.step()
            self.emit("on_epoch_end")
            if self.should_stop:
                break


def build():
    torch.manual_seed(5)
    layers = [nn.Sequential(nn.Linear(32, 32), nn.ReLU()) for _ in range(5)]
    model = nn.Sequential(*layers, nn.Linear(32, 4))
    for child in model.children():
        fully_shard(child)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, step_size=2)


def main():
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    data = TensorDataset(torch.randn(2048, 32), torch.randint(4, (2048,)))
    loader = DataLoader(data, batch_size=16, sampler=DistributedSampler(data, drop_last=True))
    model, optimizer, scheduler = build()
    callbacks = [Logger(), Checkpoint("callbacks-out"), EarlyStopping(3600)]
    Loop(model, optimizer, scheduler, loader, callbacks).run(10)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
