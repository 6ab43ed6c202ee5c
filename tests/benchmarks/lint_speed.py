"""How long `lint` takes, against what Python itself takes to parse the same files.

    python tests/benchmarks/lint_speed.py [FOLDER] [--rounds N]

Prints whole-process times, the best of N rounds each: of `lint FOLDER` (without a folder, the distributed package of
the torch that is installed) against `ast.parse` of all its Python files, and of `lint` on one clean script of 300
lines. Measure on a machine that does nothing else.
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

SKILL = Path(__file__).resolve().parents[2]
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


def best(rounds: int, *command: str) -> float:
    """The shortest whole-process time of a command, in seconds; its modules are compiled by the first round."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        process = subprocess.run([sys.executable, *command], capture_output=True, text=True, env=environment)
        times.append(time.perf_counter() - start)
        if process.returncode > 1 and "expected Python source" not in process.stderr:
            sys.exit(process.stderr)
    return min(times)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    folder = arguments.folder
    if folder is None:
        torch = importlib.util.find_spec("torch")
        if torch is None or torch.origin is None:
            sys.exit("torch is not installed: name a folder of training code")
        folder = Path(torch.origin).parent / "distributed"
    files = list(folder.rglob("*.py"))
    lines = sum(path.read_bytes().count(b"\n") for path in files)
    parse = best(arguments.rounds, "-c", PARSE, str(folder))
    lint = best(arguments.rounds, str(SKILL), "lint", str(folder), "--exit-zero")
    print(f"{folder}: {len(files)} files, {lines} lines")
    print(f"ast.parse {parse:.2f} s, lint {lint:.2f} s, ratio {lint / parse:.2f} (goal 1.0)")
    with tempfile.TemporaryDirectory() as scratch:
        script = Path(scratch, "train.py")
        script.write_text(CLEAN.format(blocks="".join(BLOCK.format(n=n) for n in range(27))))
        length = script.read_text().count("\n")
        print(f"a clean script of {length} lines: {best(5, str(SKILL), 'lint', str(script)):.3f} s (goal 0.150)")


if __name__ == "__main__":
    main()
