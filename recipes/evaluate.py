"""The mean loss of a checkpoint's weights over a text, in one process: python evaluate.py CHECKPOINT --data TEXT

Of whatever number of ranks and mesh the checkpoint is. What is asked for is read, the weights; the optimizer's state,
twice as large, is not.
"""

import argparse
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from gpt import Model, Windows
from torch.nn import functional as F
from torch.utils.data import DataLoader


def main() -> None:
    """Load, and judge."""
    parser = argparse.ArgumentParser()
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    args = parser.parse_args()

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = Model().to(device).eval()
    weights = model.state_dict()
    dcp.load({"train": {"model": weights}}, checkpoint_id=args.checkpoint, no_dist=True)  # no process group is needed
    model.load_state_dict(weights)
    total, count = 0.0, 0
    with torch.inference_mode():
        for tokens in DataLoader(Windows(args.data, 64), 16):
            tokens = tokens.to(device)
            logits = model(tokens[:, :-1])
            total += F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="sum").item()
            count += tokens[:, 1:].numel()
    print(f"loss {total / count:.6f}")


if __name__ == "__main__":
    main()
