"""A generated script as a module of this process, and a world of one rank for it."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType

import pytest
import torch
import torch.distributed as dist

from .training import SMALL, write_script


def load_script(folder: Path, **chosen: str) -> ModuleType:
    """The script generated from these options; nothing of it runs at import."""
    spec = importlib.util.spec_from_file_location("generated", write_script(folder, **chosen))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def parse(
    train: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    world: int = 2,
    rank: int = 0,
    small: Mapping[str, str] = SMALL,
    **options: str,
) -> argparse.Namespace:
    """What the script makes of these options on one rank of `world`."""
    given = {**small, **{f"--{name.replace('_', '-')}": value for name, value in options.items()}}
    for name, value in {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr(sys, "argv", ["train.py", *(word for pair in given.items() for word in pair)])
    args: argparse.Namespace = train.parse_args()
    return args


@contextlib.contextmanager
def joined() -> Iterator[None]:
    """In a process group of one rank, deterministic as scripts make it; random numbers are as before in the end.

    A script that ends this process, which in a group it does at once, is taken to raise SystemExit.
    """
    state = torch.random.get_rng_state()
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True  # the default, which a script changes once it has built
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    here, end = os.getpid(), os._exit
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("os._exit", lambda code: (sys.exit if os.getpid() == here else end)(code))
            yield
    finally:
        dist.destroy_process_group()
        torch.use_deterministic_algorithms(False)
        torch.random.set_rng_state(state)
