"""Start the ranks of a script: as `torchrun` does (`torchrun.py`), or forked from a warm parent (`warm.py`)."""

from __future__ import annotations

from ..errors import UserError
from .job import Launcher


def launcher(name: str) -> Launcher:
    """The launcher of that name, `warm` or `torchrun`. Raises UserError for another name."""
    from .torchrun import TorchrunLauncher
    from .warm import WarmLauncher

    known: dict[str, type[WarmLauncher] | type[TorchrunLauncher]] = {
        WarmLauncher.name: WarmLauncher,
        TorchrunLauncher.name: TorchrunLauncher,
    }
    if name not in known:
        raise UserError(f"launcher {name}: no such launcher; expected {' or '.join(known)}")
    return known[name]()
