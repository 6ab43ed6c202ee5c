"""Small training programs for the reader, built from a common start."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TypeVar

from pytorch_fsdp2_dcp.validate.events import Event
from pytorch_fsdp2_dcp.validate.reader import read
from pytorch_fsdp2_dcp.validate.trace import Trace

E = TypeVar("E", bound=Event)

IMPORTS = """
import os
import torch
import torch.nn as nn
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.fsdp import fully_shard
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions, get_model_state_dict, get_optimizer_state_dict, get_state_dict,
    set_model_state_dict, set_optimizer_state_dict, set_state_dict,
)
"""

MODEL = """
class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, width), nn.GELU())

    def forward(self, x):
        return x + self.mlp(self.norm(x))


class Net(nn.Module):
    def __init__(self, depth=4, width=8):
        super().__init__()
        self.embed = nn.Embedding(16, width)
        self.blocks = nn.ModuleList([Block(width) for _ in range(depth)])
        self.head = nn.Linear(width, 16)

    def forward(self, x):
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)
"""

SHARDED = (
    IMPORTS
    + MODEL
    + """
dist.init_process_group("gloo")
model = Net()
for block in model.blocks:
    fully_shard(block)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters())
"""
)


def program(text: str, start: str = IMPORTS) -> Trace:
    """The trace of a program that goes on after `start`."""
    return traces(text, start)[0]


def traces(text: str, start: str = IMPORTS) -> tuple[Trace, ...]:
    """The traces of the program and of the functions that it does not reach."""
    return read(Path("train.py"), text=start + textwrap.dedent(text)).traces


def only(trace: Trace, kind: type[E]) -> E:
    """The one event of its kind."""
    (event,) = trace.of(kind)
    return event


def gave_up(trace: Trace) -> list[str]:
    """The notes in which the reader admits a surprise of its own."""
    return [note.text for note in trace.notes if "gave up" in note.text]
