"""How long `lint` takes, against what Python itself takes to parse the same files.

    python -m tests.benchmarks.lint_speed [FOLDER]

Prints rows for whole processes: `lint FOLDER` (without a folder, the distributed package of the torch that is
installed) against `ast.parse` of all its Python files, the first time and when nothing has changed since, and `lint` on
one clean script of 300 lines, against the time that it may take.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from .ranks import ROOT, row

ROUNDS = 4  # after one that is not counted: it compiles the modules
SCRIPT_GOAL = 0.150  # seconds
PARSE = """
import ast, pathlib, sys, warnings
warnings.simplefilter("ignore")
for path in pathlib.Path(sys.argv[1]).rglob("*.py"):
    try:
        ast.parse(path.read_bytes())
    except SyntaxError:
        pass
"""
BLOCK = """
class Block{n}(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.inner = nn.Linear(dim, 4 * dim)
        self.outer = nn.Linear(4 * dim, dim)

    def forward(self, x):
        return x + self.outer(torch.relu(self.inner(x)))

"""
CLEAN = """
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
{blocks}

def main():
    dist.init_process_group("gloo")
    model = nn.Sequential(*(Block0(8) for _ in range(4)))
    for block in model:
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(10):
        loss = model(torch.randn(2, 8)).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
"""


def seconds(*command: str) -> float:
    """How long a command takes."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    start = time.perf_counter()
    process = subprocess.run([sys.executable, *command], capture_output=True, text=True, env=environment, check=False)
    if process.returncode > 1 and "expected Python source" not in process.stderr:
        sys.exit(process.stderr)
    return time.perf_counter() - start


def installed() -> Path:
    """The folder of torch's distributed package."""
    torch = importlib.util.find_spec("torch")
    if torch is None or torch.origin is None:
        sys.exit("torch is not installed: name a folder of training code")
    return Path(torch.origin).parent / "distributed"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path)
    folder = parser.parse_args().folder or installed()
    count = sum(1 for _ in folder.rglob("*.py"))
    linted, again, parsed = [], [], []
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["XDG_CACHE_HOME"] = scratch
        for _ in range(ROUNDS + 1):
            parsed.append(seconds("-c", PARSE, str(folder)))
            linted.append(seconds(str(ROOT), "lint", str(folder), "--exit-zero", "--no-cache"))
            again.append(seconds(str(ROOT), "lint", str(folder), "--exit-zero"))
    name = f"lint of {count} files in {folder.name}, against ast.parse"
    print(row(f"{name}, the first time", "at most 1.00", linted[1:], parsed[1:]), flush=True)
    print(row(f"{name}, unchanged", "at most 1.00", again[1:], parsed[1:]), flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        script = Path(scratch, "train.py")
        script.write_text(CLEAN.format(blocks="".join(BLOCK.format(n=n) for n in range(27))))
        length = script.read_text().count("\n")
        times = [seconds(str(ROOT), "lint", str(script)) for _ in range(ROUNDS + 1)][1:]
        print(row(f"lint of a clean script of {length} lines", "at most 1.00", times, [SCRIPT_GOAL] * ROUNDS))


if __name__ == "__main__":
    main()
