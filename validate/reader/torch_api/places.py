"""Directories: which are the same one each time that the program comes by, and what moves files about."""

from __future__ import annotations

import re

from ...events import FilesMoved
from ..values import NONE, Const, External, Obj, Sym, Value, What
from ..walk.calls import Call
from ..walk.core import Walk
from ..walk.folders import may_be_path
from .table import anything, api

_SETTINGS = re.compile(r"^(self\.)?_?(args|cfg|conf|config|opts?|options|settings|hparams|FLAGS)$")
_PIECES = ("join", "f-string", "op", "convert")  # what makes a path of others
_MOVES = (
    "os.rename", "os.replace", "os.renames", "os.symlink", "os.link", "shutil.move", "shutil.copytree",
    "shutil.copy", "shutil.copy2", "shutil.copyfile",
)  # fmt: skip


def place_of(walk: Walk, value: Value | None) -> str | None:
    """A text that stands for the directory that `value` names; None where it may be another one the next time.

    A local variable or an argument is the same object each time that it is seen; an attribute of an object that is not
    known is not, unless the object holds settings.
    """
    if isinstance(value, Const):
        return None if value == NONE else str(value.value)
    if isinstance(value, Obj):
        is_text = value.what is What.OPAQUE and (value.parent is None or _is_setting(walk, value))
        return f"<{value.id}>" if is_text and not value.many else None
    if not isinstance(value, Sym):
        return None
    made = walk.parts_of(value.key)
    if made[:1] == ("environment",):
        return f"<{value.key}>"
    if made[:1] == () or made[0] not in _PIECES:
        return None
    pieces = [place_of(walk, part) if isinstance(part, Value) else str(part) for part in made[1:]]
    known = [piece for piece in pieces if piece is not None]
    return "/".join(known) if len(known) == len(pieces) else None


def _is_setting(walk: Walk, value: Obj) -> bool:
    """Whether it was found in what holds the settings of the program."""
    _, *around = value.found_in()
    return any(at.cls == External("argparse.Namespace") or _SETTINGS.match(walk.name(at)) for at in around)


@api(*_MOVES)
def _moved(call: Call) -> Value:
    call.walk.emit(FilesMoved, call.node)
    return NONE


@anything("rename", "symlink_to", "hardlink_to")
def _path_moved(call: Call, receiver: Value) -> Value | None:
    if isinstance(receiver, Const) or may_be_path(receiver):
        call.walk.emit(FilesMoved, call.node)
        return call.walk.unknown()
    return None
