"""`fsdp2 convert` of a checkpoint of 1 GB to each format, against copying its files; both until the disk has them.

The checkpoint is in the page cache. Converting is timed as a whole process, with the reading back that it does.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

from .ranks import ROOT, row

ROUNDS = 4  # after one that is not counted
COPIED = 2**20  # bytes at a time, the fastest here
TARGETS = {"a .pt file": "model.pt", "safetensors": "model.safetensors", "DCP": "dcp"}


def copy(source: Path, target: Path) -> None:
    """Copy a folder of files."""
    target.mkdir()
    for file in source.iterdir():
        with file.open("rb", buffering=0) as reading, (target / file.name).open("wb", buffering=0) as writing:
            shutil.copyfileobj(reading, writing, COPIED)
            os.fsync(writing.fileno())


def convert(source: Path, target: Path) -> None:
    """Run the command."""
    subprocess.run([sys.executable, str(ROOT), "convert", source, target], check=True, stdout=subprocess.DEVNULL)


def timed(function: Callable[[Path, Path], None], source: Path, target: Path) -> float:
    """Seconds; what was written is removed, and the disk is idle before."""
    os.sync()
    started = time.perf_counter()
    function(source, target)
    seconds = time.perf_counter() - started
    shutil.rmtree(target) if target.is_dir() else target.unlink()
    return seconds


def main() -> None:
    """Print a row for each format."""
    import torch
    import torch.distributed.checkpoint as dcp

    with tempfile.TemporaryDirectory(prefix="fsdp2-bench-") as name, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that no process group is there is meant
        folder = Path(name)
        dcp.save({f"layers.{n}": torch.randn(4096, 4096) for n in range(16)}, checkpoint_id=folder / "source")
        for what, target in TARGETS.items():
            ours, theirs = [], []
            for index in range(ROUNDS + 1):
                for side in (0, 1) if index % 2 else (1, 0):
                    if side:
                        theirs.append(timed(copy, folder / "source", folder / "copy"))
                    else:
                        ours.append(timed(convert, folder / "source", folder / target))
            print(row(f"convert to {what}", "at least 0.80", ours[1:], theirs[1:], inverse=True), flush=True)


if __name__ == "__main__":
    main()
