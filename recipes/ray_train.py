"""The training of b_blocking.py on a Ray cluster: python ray_train.py --workers 2 --data TEXT

Ray's workers are the ranks: it makes the process group and chooses the devices, and starts all ranks again when one
fails. Checkpoints are DCP's, in a folder that all machines see, and resuming is the script's, as under torchrun; Ray's
own checkpoints would go through one process. Needs ray[train].
"""

import argparse
from pathlib import Path
from typing import Any

import ray
import torch.distributed as dist
from b_blocking import train
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer, get_device
from sharded import build


def work(config: dict[str, Any]) -> None:
    """What each worker does, once the process group is there."""
    device = get_device()
    args = argparse.Namespace(**config)
    # No handler for signals, which a worker's thread cannot have: what Ray ends goes on from its newest checkpoint.
    train(build(device), device, args, dist.get_world_size(), dist.get_rank(), [])


def main() -> None:
    """Train on a cluster, or on this machine where there is none."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch", type=int, default=16, help="of all workers together")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--checkpoint-dir", type=Path, default=Path("checkpoints"))
    parser.add_argument("--checkpoint-interval", type=int, default=10)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()

    args.data, args.checkpoint_dir = args.data.resolve(), args.checkpoint_dir.resolve()  # a worker has another folder
    ray.init(runtime_env={"env_vars": {"PYTHONPATH": str(Path(__file__).resolve().parent)}})  # workers import it, too
    gpus = ray.cluster_resources().get("GPU", 0) >= args.workers
    trainer = TorchTrainer(
        work,
        train_loop_config=vars(args),
        torch_config=TorchConfig(backend="cpu:gloo,cuda:nccl" if gpus else "gloo"),
        scaling_config=ScalingConfig(num_workers=args.workers, use_gpu=gpus),
        run_config=RunConfig(
            storage_path=str(args.checkpoint_dir / "ray"), failure_config=FailureConfig(max_failures=3)
        ),
    )
    trainer.fit()


if __name__ == "__main__":
    main()
