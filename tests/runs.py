"""Runs a script's text on a few ranks under the probe."""

from __future__ import annotations

import os
import textwrap
from pathlib import Path
from typing import Any, TypeVar

from pytorch_fsdp2_dcp.validate.events import Event
from pytorch_fsdp2_dcp.validate.launch import launcher
from pytorch_fsdp2_dcp.validate.launch.job import Job, Probe, Run
from pytorch_fsdp2_dcp.validate.probe.merge import merge
from pytorch_fsdp2_dcp.validate.trace import Trace

E = TypeVar("E", bound=Event)

PREPARED = """
import os
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(8, 16)
        self.down = nn.Linear(16, 8)

    def forward(self, x):
        return x + self.down(self.up(x).relu())


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(8, 8)
        self.blocks = nn.ModuleList([Block(), Block()])

    def forward(self, x):
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return x


def shard(model):
    for block in model.blocks:
        fully_shard(block)
    return fully_shard(model)


def train(model, optimizer, steps=1):
    for _ in range(steps):
        model(torch.randn(2, 8)).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


FINISHED = """
if dist.is_initialized():
    dist.barrier()  # without it, torch now and then aborts a rank that is torn down before its peers are done
    dist.destroy_process_group()
"""


def run_script(
    tmp_path: Path,
    text: str,
    *,
    prepared: bool = True,
    nproc: int = 2,
    using: str = "warm",
    deadline: float = 60,
    args: tuple[str, ...] = (),
    env: dict[str, str] | None = None,
    **probe: Any,
) -> Run:
    """Run the text, by default between `PREPARED` and `FINISHED`, in a working directory of its own."""
    cwd = tmp_path / "cwd"
    cwd.mkdir(exist_ok=True)
    script = cwd / "script.py"
    body = textwrap.dedent(text)
    script.write_text(PREPARED + body + FINISHED if prepared else body)
    scratch = tmp_path / f"scratch-{using}-{len(list(tmp_path.iterdir()))}"
    scratch.mkdir()
    job = Job(
        script=script, args=args, nproc=nproc, cwd=cwd, scratch=scratch, deadline=deadline, env=env or {},
        probe=Probe(**probe),
    )  # fmt: skip
    return launcher(using).run(job)


def traces_of(tmp_path: Path, text: str, **options: Any) -> tuple[Trace, ...]:
    """The traces of a run in which every rank exits with 0 and the probe has no failure of its own."""
    run = run_script(tmp_path, text, **options)
    assert run.succeeded, [(end.code, end.output) for end in run.ends]
    traces = merge(run)
    assert [note.text for trace in traces for note in trace.notes] == []
    return traces


def only(trace: Trace, event: type[E]) -> E:
    """The one event of its class in a trace."""
    (found,) = trace.of(event)
    return found


def alive(marker: str) -> list[int]:
    """The processes, zombies left out, that have `marker` in their environment or command line."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal() or int(entry.name) == os.getpid():
            continue
        try:
            told = (entry / "environ").read_bytes() + (entry / "cmdline").read_bytes()
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if marker.encode() in told and state not in "ZX":
            found.append(int(entry.name))
    return found
