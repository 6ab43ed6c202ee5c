"""What all trainers of the folder share."""

import abc
import contextlib
import os

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard


@contextlib.contextmanager
def distributed(backend="cpu:gloo,cuda:nccl"):
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group(backend)
    try:
        yield dist.get_rank(), dist.get_world_size()
    finally:
        dist.destroy_process_group()


class BaseTrainer(abc.ABC):
    layer_types: tuple[type, ...] = ()

    def __init__(self, args):
        self.args = args
        self.start_epoch = 0
        self.model = self.build_model()
        self.optimizer = self.build_optimizer()
        self.model = self.shard(self.model)
        if args.resume:
            self.resume(args.resume)

    @abc.abstractmethod
    def build_model(self): ...

    @abc.abstractmethod
    def train_one_epoch(self, epoch): ...

    def build_optimizer(self):
        return torch.optim.AdamW(self.model.parameters(), lr=self.args.lr)  # expect: FS401

    def shard(self, model):
        for module in reversed(list(model.modules())):
            if module is not model and isinstance(module, self.layer_types):
                fully_shard(module)
        fully_shard(model)
        return model

    def checkpoint(self, epoch):
        model_state, optim_state = get_state_dict(self.model, self.optimizer)
        state = {"model": model_state, "optim": optim_state, "epoch": epoch}
        dcp.save(state, storage_writer=dcp.FileSystemWriter(f"{self.args.out}/{epoch}"))

    def resume(self, path):
        model_state, optim_state = get_state_dict(self.model, self.optimizer)
        state = {"model": model_state, "optim": optim_state, "epoch": 0}
        dcp.load(state, storage_reader=dcp.FileSystemReader(path))
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optim"])
        self.start_epoch = state["epoch"] + 1

    def run(self):
        for epoch in range(self.start_epoch, self.args.epochs):
            self.train_one_epoch(epoch)
            self.checkpoint(epoch)
