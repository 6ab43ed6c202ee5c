"""Runs a benchmark on ranks of this machine, and makes generated scripts modules of it."""

from __future__ import annotations

import contextlib
import io
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from .. import conftest  # noqa: F401 - registers the package that the next lines import

from ..templates.loaded import load_script  # isort: skip
from ..templates.training import TEXT  # isort: skip

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))  # conftest took it off; a process that DCP spawns imports the program from there anew
RANKS = 2
GIGABYTE: dict[str, object] = {
    "layers": 7,
    "width": 1024,
    "heads": 8,
    "seq-len": 32,
    "global-batch": 2,
    "micro-batch": 1,
}
"""A model that, with the two moments of AdamW, is 1 GB of state; steps that take little beside saving it."""


def on_ranks(measure: Callable[[Path], None]) -> None:
    """Call `measure` on every rank, with a folder that all share and that is gone in the end."""
    if "RANK" in os.environ:
        measure(Path(os.environ["BENCHMARK_FOLDER"]))
        return
    program = f"tests.benchmarks.{Path(sys.argv[0]).stem}"
    command = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS), "-m", program]
    with tempfile.TemporaryDirectory(prefix="fsdp2-bench-") as folder:
        environment = {"OMP_NUM_THREADS": "1", **os.environ, "BENCHMARK_FOLDER": folder}
        command = [sys.executable, "-m", *command]
        process = subprocess.run(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True, check=False)
    sys.exit(process.stderr if process.returncode else 0)


def generated(**chosen: str) -> ModuleType:
    """The script for these options, as a module."""
    with tempfile.TemporaryDirectory() as folder:
        return load_script(Path(folder), **chosen)


def arguments(train: ModuleType, **options: object) -> object:
    """What the script makes of these options on its command line, and `sys.argv` is set to them."""
    given = {"data": TEXT, **options}
    sys.argv = ["train.py", *(word for name, value in given.items() for word in (f"--{name}", str(value)))]
    return train.parse_args()


def run_main(train: ModuleType, step: Callable[[Any, Any], Any]) -> None:
    """Run the script's `main` with this in the place of its step, silently; its last line ends the process."""
    train.train_step = step
    with contextlib.redirect_stdout(io.StringIO()):
        train.main()


def touch_memory() -> None:
    """Write to a gigabyte on each rank and give it back: a virtual machine is slow where it writes for the first time.

    What is measured then finds such memory, for its page cache and its copies, whichever side's turn it is.
    """
    import torch

    torch.ones(2**28)


def row(name: str, goal: str, ours: Sequence[float], theirs: Sequence[float], *, inverse: bool = False) -> str:
    """A line of the table: seconds of both sides, and the ratio of the medians, ours to theirs or the inverse."""
    ratios = sorted((b / a if inverse else a / b) for a, b in zip(ours, theirs, strict=True))
    one, other = statistics.median(ours), statistics.median(theirs)
    ratio = other / one if inverse else one / other
    quarter = len(ratios) // 4
    return (
        f"| {name} | {one:.3f} s | {other:.3f} s | {ratio:.2f} | "
        f"{ratios[quarter]:.2f} to {ratios[-1 - quarter]:.2f} | {goal} |"
    )


HEAD = "| | generated | against | ratio | middle half of rounds | goal |\n|---|---|---|---|---|---|"
