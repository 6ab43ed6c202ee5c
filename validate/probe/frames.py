"""Where the program is: the innermost frame that is neither torch's, nor the standard library's, nor ours."""

from __future__ import annotations

import functools
import os
import sys
import sysconfig
from pathlib import Path
from types import FrameType

import torch
from torch.distributed.checkpoint import state_dict

from ..events import Location

_OURS = str(Path(__file__).resolve().parents[1]) + os.sep
_TORCH = str(Path(torch.__file__).parent) + os.sep
_DYNAMO = (_TORCH + "_compile.py", _TORCH + "_dynamo" + os.sep)
_STDLIB = tuple({sysconfig.get_path("stdlib") + os.sep, sysconfig.get_path("platstdlib") + os.sep})
_INSTALLED = tuple({sysconfig.get_path("purelib") + os.sep, sysconfig.get_path("platlib") + os.sep})


@functools.cache
def ours(file: str) -> bool:
    """Whether code in this file is the validator's."""
    return file.startswith(_OURS)


@functools.cache
def programs(file: str) -> bool:
    """Whether code in this file belongs to the program or to a library other than torch."""
    if file.startswith((_OURS, _TORCH, "<")):
        return False
    return file.startswith(_INSTALLED) or not file.startswith(_STDLIB)


def caller() -> FrameType | None:
    """The frame that called into our wrapper."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and ours(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def behind_dynamo(frame: FrameType | None) -> FrameType | None:
    """The first frame, from this one on, that is not of what torch puts around functions that it does not compile."""
    while frame is not None and frame.f_code.co_filename.startswith(_DYNAMO):
        frame = frame.f_back
    return frame


def program_frame(building: object = None) -> FrameType | None:
    """The program's innermost frame; with `building`, outside of the `__init__` of that object."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if programs(code.co_filename) and not (
            building is not None
            and code.co_name == "__init__"
            and code.co_varnames
            and frame.f_locals.get(code.co_varnames[0]) is building
        ):
            return frame
        frame = frame.f_back
    return None


def stack() -> tuple[tuple[str, int, int], ...]:
    """The program's frames, the outermost first: the file, where the function begins, and the line."""
    found: list[tuple[str, int, int]] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if programs(code.co_filename):
            found.append((code.co_filename, code.co_firstlineno, frame.f_lineno or 1))
        frame = frame.f_back
    return tuple(reversed(found))


def on_behalf_of_helpers() -> bool:
    """Whether the state-dict helpers are at work: to have optimizer state to fill, they let a fresh optimizer step."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not programs(frame.f_code.co_filename):
        if frame.f_code.co_filename == state_dict.__file__:
            return True
        frame = frame.f_back
    return False


class Places:
    """Turns frames into locations, with files as the user would write them: relative to where the program started."""

    def __init__(self, cwd: str) -> None:
        self._cwd = os.path.realpath(cwd)
        self._shown: dict[str, str] = {}

    def of(self, frame: FrameType | None) -> Location:
        """The place that a frame is at."""
        if frame is None:
            return Location("<unknown>", 1)
        return Location(self.shown(frame.f_code.co_filename), frame.f_lineno or 1)

    def shown(self, file: str) -> str:
        """A file as the user would write it."""
        if file not in self._shown:
            path = os.path.realpath(Path(self._cwd, file))
            self._shown[file] = os.path.relpath(path, self._cwd) if path.startswith(self._cwd + os.sep) else path
        return self._shown[file]


def variable(frame: FrameType | None, value: object) -> str | None:
    """The name that the program has for an object at this place, None where it has none."""
    if frame is None:
        return None
    return next((name for name, held in list(frame.f_locals.items()) if held is value and name[0] != "_"), None)
