"""Tells a process's `Faults` how far DCP has come in a save, through torch's own functions.

Only a run with a fault has these hooks.
"""

from __future__ import annotations

import functools
import threading
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint import filesystem, staging, state_dict_saver

from ..launch.places import Settings
from .faults import Faults

BOOT = Path(__file__).resolve().parents[1] / "launch" / "boot.py"


def install(faults: Faults) -> None:
    """Hook what writes a save in this process."""

    def around_save(original: Any, *args: Any, **kwargs: Any) -> Any:
        with faults.writing(kwargs["storage_writer"] if "storage_writer" in kwargs else args[1]):
            return original(*args, **kwargs)

    def before_entry(original: Any, *args: Any, **kwargs: Any) -> Any:
        faults.entry_begun(next(value for value in (*args, *kwargs.values()) if hasattr(value, "tell")))
        return original(*args, **kwargs)

    _wrap(state_dict_saver, "_save_state_dict", around_save)
    _wrap(filesystem, "_write_item", before_entry)


def install_in_rank(faults: Faults, settings: Settings, rank: int) -> None:
    """Hook also what copies the state of an asynchronous save, and the start of the process that may write it."""
    install(faults)

    def before_copy(original: Any, *args: Any, **kwargs: Any) -> Any:
        faults.tensor_copied()
        return original(*args, **kwargs)

    def around_background(original: Any, *args: Any, **kwargs: Any) -> Any:
        fault = faults.fault
        held = fault is not None and fault.harm == "hold" and faults.chosen is not None
        if held and threading.current_thread() is not threading.main_thread():
            faults.hold("copying")
        return original(*args, **kwargs)

    if hasattr(staging, "StateDictStager"):
        _wrap(staging.StateDictStager, "_offload_tensor", before_copy)
        _wrap(staging.DefaultStager, "_stage", around_background)
    else:
        _wrap(staging, "_copy_state_dict", before_copy)
    try:
        from torch.distributed.checkpoint._async_process_executor import _AsyncCheckpointProcess
    except ImportError:
        return  # this torch saves by threads only
    target = _Target(str(settings.places.settings), rank)
    _AsyncCheckpointProcess._checkpointing_subprocess = staticmethod(target)  # type: ignore[assignment]


def serve(settings_path: str, rank: int, *args: Any) -> None:
    """Be the process that writes the checkpoints of a rank, watched."""
    install(Faults(Settings.read(Path(settings_path)), rank, writer=True))
    from torch.distributed.checkpoint._async_process_executor import _AsyncCheckpointProcess

    _AsyncCheckpointProcess._checkpointing_subprocess(*args)


class _Target:
    """What torch's process for writing runs: pickled for a fresh Python, to which this package is not known."""

    def __init__(self, settings_path: str, rank: int) -> None:
        self._settings_path = settings_path
        self._rank = rank

    def __reduce__(self) -> tuple[Any, ...]:
        ours = f"__import__('runpy').run_path({str(BOOT)!r})['writer']({self._settings_path!r}, {self._rank})"
        return eval, (ours,)

    def __call__(self, *args: Any) -> None:
        serve(self._settings_path, self._rank, *args)


def _wrap(owner: Any, name: str, around: Any) -> None:
    if (original := vars(owner).get(name)) is None:
        return  # this torch does not have it

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return around(original, *args, **kwargs)

    setattr(owner, name, wrapper)
