"""A denoiser with an average of its shards, evaluated with the averaged weights swapped in, async saves with a stager."""

import contextlib
import os

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict
from torch.distributed.fsdp import fully_shard


class Denoiser(nn.Module):
    def __init__(self, channels=64, depth=6):
        super().__init__()
        self.entry = nn.Conv2d(3, channels, 3, padding=1)
        self.stages = nn.ModuleList(
            nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1), nn.SiLU()) for _ in range(depth)
        )
        self.exit = nn.Conv2d(channels, 3, 3, padding=1)

    def forward(self, x):
        h = self.entry(x)
        for stage in self.stages:
            h = h + stage(h)
        return self.exit(h)


class ShardEMA:
    def __init__(self, model, decay=0.999):
        self.decay = decay
        self.shadow = {name: p.detach().to_local().clone() for name, p in model.named_parameters()}

    @torch.no_grad()
    def update(self, model):
        for name, p in model.named_parameters():
            self.shadow[name].lerp_(p.to_local(), 1 - self.decay)

    @contextlib.contextmanager
    def swapped(self, model):
        backup = {name: p.detach().clone() for name, p in model.named_parameters()}
        try:
            with torch.no_grad():
                for name, p in model.named_parameters():
                    p.to_local().copy_(self.shadow[name])
            yield model
        finally:
            with torch.no_grad():
                for name, p in model.named_parameters():
                    p.copy_(backup[name])


def loss_of(model, images):
    noise = torch.randn_like(images)
    return (model(images + noise) - noise).square().mean()


def evaluate(model, ema):
    with ema.swapped(model), torch.no_grad():
        value = loss_of(model, torch.randn(8, 3, 32, 32, device="cuda"))
    dist.all_reduce(value, op=dist.ReduceOp.AVG)
    return value.item()


def main():
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("cpu:gloo,cuda:nccl")
    group = dist.new_group(backend="gloo")
    torch.manual_seed(0)
    model = Denoiser()
    for stage in model.stages:
        fully_shard(stage)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    ema = ShardEMA(model)
    torch.manual_seed(1 + dist.get_rank())
    stager = DefaultStager(StagingOptions(use_async_staging=True))
    response = None
    for step in range(1, 10001):
        loss = loss_of(model, torch.rand(16, 3, 32, 32, device="cuda"))
        loss.backward()
        if response is not None and not response.staging_completion.done():
            response.staging_completion.result()
        optimizer.step()
        optimizer.zero_grad()
        ema.update(model)
        if step % 500 == 0:
            value = evaluate(model, ema)
            if dist.get_rank() == 0:
                print(step, value)
        if step % 1000 == 0:
            if response is not None:
                response.upload_completion.result()
            state = {
                "model": get_model_state_dict(model),
                "optimizer": get_optimizer_state_dict(model, optimizer),
                "ema": ema.shadow,
                "step": step,
            }
            response = dcp.async_save(  # expect: FS603
                state, checkpoint_id=f"ema/{step}", process_group=group, async_stager=stager
            )
    if response is not None:
        response.upload_completion.result()
    stager.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
