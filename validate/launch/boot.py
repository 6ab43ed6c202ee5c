"""Where every process that the launchers start begins: it makes the skill importable and becomes what it is told to be.

`boot.py rank SETTINGS` is one rank under torchrun; `boot.py serve` is the warm parent. A process that torch starts to
write checkpoints comes here too, where a fault is done to them.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent


def _register() -> str:
    """Make the package importable, from its folder and under its own name only; returns that name."""
    if sys.path and sys.path[0] and Path(sys.path[0]).resolve() == HERE:
        del sys.path[0]  # or this folder's modules would shadow the script's own
    spec = importlib.util.spec_from_file_location("_fsdp2_main", HERE.parents[1] / "__main__.py")
    assert spec is not None and spec.loader is not None
    main = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(main)
    main.register()
    return str(main.PACKAGE)


def writer(settings_path: str, rank: int) -> Callable[..., None]:
    """What the process runs that writes the checkpoints of a rank, if it is watched."""
    phases = importlib.import_module(f"{_register()}.validate.probe.phases")
    return functools.partial(phases.serve, settings_path, rank)


if __name__ == "__main__":
    package = _register()
    if sys.argv[1] == "rank":
        rank = importlib.import_module(f"{package}.validate.launch.rank")
        rank.leave(rank.shepherd(Path(sys.argv[2]), warm=False))
    else:
        importlib.import_module(f"{package}.validate.launch.server").serve()
