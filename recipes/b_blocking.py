"""The same with Distributed Checkpoint, exact after a kill: torchrun --nproc-per-node 2 -- b_blocking.py --data TEXT

Run the same command line again, and it goes on from the newest whole checkpoint. SIGTERM saves, and exits with 0.
"""

import argparse
import signal
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from gpt import Model, Windows
from resumable import RankState, TrainState, load, newest_whole
from sharded import build, end, start
from torch import Tensor
from torch.nn import functional as F
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import DataLoader, DistributedSampler


def arguments() -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch", type=int, default=16, help="of all ranks together")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--checkpoint-dir", type=Path, default=Path("checkpoints"))
    parser.add_argument("--checkpoint-interval", type=int, default=10)
    return parser.parse_args()


def train(
    model: Model, device: torch.device, args: argparse.Namespace, replicas: int, replica: int, signals: list[int]
) -> None:
    """Train for some epochs, from the newest checkpoint on; each of the model's replicas has a part of each batch.

    Once there is something in `signals` on any rank, all finish their step, save and return.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    data = Windows(args.data, 64)
    order: DistributedSampler[Tensor] = DistributedSampler(data, replicas, replica, seed=0, drop_last=True)
    generator = torch.Generator()  # of its own, so that starting an epoch draws nothing from the saved one
    batch = args.batch // replicas
    loader = DataLoader(data, batch, sampler=order, drop_last=True, generator=generator)
    steps = args.epochs * len(loader)
    progress, ranks = TrainState(model, optimizer, CosineAnnealingLR(optimizer, steps)), RankState()
    state = {"train": progress, ranks.key: ranks}
    if newest := newest_whole(args.checkpoint_dir):
        load(state, newest)

    stop = False
    for epoch in range(progress.step // len(loader), args.epochs):
        order.set_epoch(epoch)
        done = progress.step - epoch * len(loader)  # batches of this epoch
        for index, tokens in enumerate(loader):
            if index < done:
                continue
            tokens = tokens.to(device)
            logits = model(tokens[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            progress.scheduler.step()
            optimizer.zero_grad()
            progress.step += 1
            agreed = torch.tensor([loss.item(), len(signals)])
            dist.all_reduce(agreed)  # of all ranks: the mean of the loss, and whether to stop after this step
            stop = bool(agreed[1])
            if dist.get_rank() == 0:
                print(f"step {progress.step}: loss {agreed[0] / dist.get_world_size():.6f}", flush=True)
            if stop or progress.step % args.checkpoint_interval == 0 or progress.step == steps:
                dcp.save(state, checkpoint_id=args.checkpoint_dir / f"step-{progress.step:08}")
            if stop:
                break
        if stop:
            break


def main() -> None:
    """Train on as many replicas, each sharded over the others, as there are ranks."""
    args = arguments()
    signals: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: signals.append(number))
    device = start()
    train(build(device), device, args, dist.get_world_size(), dist.get_rank(), signals)
    end()


if __name__ == "__main__":
    main()
