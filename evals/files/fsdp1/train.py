"""Tell tones apart with a stack of gated layers: torchrun --nproc-per-node 2 train.py [--iterations N]"""

import argparse
import functools
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.fsdp import FullStateDictConfig, MixedPrecision, ShardingStrategy, StateDictType
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy


class Gated(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.value = nn.Conv1d(channels, channels, 3, padding=1)
        self.gate = nn.Conv1d(channels, channels, 3, padding=1)

    def forward(self, x):
        return x + self.value(x) * torch.sigmoid(self.gate(x))


class ToneNet(nn.Module):
    def __init__(self, channels=16, layers=3, tones=4):
        super().__init__()
        self.lift = nn.Conv1d(1, channels, 5, padding=2)
        self.layers = nn.ModuleList([Gated(channels) for _ in range(layers)])
        self.classify = nn.Linear(channels, tones)

    def forward(self, wave):
        x = self.lift(wave.unsqueeze(1))
        for layer in self.layers:
            x = layer(x)
        return self.classify(x.mean(-1))


def waves(iteration, rank, batch):
    g = torch.Generator().manual_seed(1000 * iteration + rank)
    tone = torch.randint(4, (batch,), generator=g)
    time = torch.linspace(0, 6.28, 64)
    return torch.sin((1 + tone)[:, None] * time) + 0.3 * torch.randn(batch, 64, generator=g), tone


def main(iterations):
    rank, cuda = int(os.environ["RANK"]), torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group(backend="nccl" if cuda else "gloo")
    torch.manual_seed(42)
    net = FSDP(
        ToneNet(),
        sharding_strategy=ShardingStrategy.FULL_SHARD,
        auto_wrap_policy=functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Gated}),
        mixed_precision=MixedPrecision(param_dtype=torch.float32, reduce_dtype=torch.float32),
        device_id=device,
        sync_module_states=True,
        use_orig_params=True,
    )
    adam = torch.optim.Adam(net.parameters(), lr=1e-2)
    for iteration in range(iterations):
        wave, tone = waves(iteration, rank, 4)
        loss = F.cross_entropy(net(wave.to(device)), tone.to(device))
        loss.backward()
        net.clip_grad_norm_(1.0)
        adam.step()
        adam.zero_grad()
        shown = loss.detach().clone()
        dist.all_reduce(shown)
        if rank == 0:
            print(f"[{iteration}] loss {shown.item() / dist.get_world_size():.6f}", flush=True)
    with FSDP.state_dict_type(net, StateDictType.FULL_STATE_DICT, FullStateDictConfig(rank0_only=True)):
        weights = net.state_dict()
    if rank == 0:
        torch.save(weights, "tones.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--iterations", type=int, default=12)
    main(parser.parse_args().iterations)
