"""Directories: which are the same one each time that the program comes by, and what moves files about."""

from __future__ import annotations

import re

from ...events import DirectoryRemoved, FilesMoved, PointerWritten
from ..values import NONE, Const, External, Obj, Sym, Value, What, single
from ..walk.calls import Call, call_library
from ..walk.core import Walk
from ..walk.folders import is_kept_in_list, may_be_path, pieces
from .table import anything, api

_SETTINGS = re.compile(r"^(self\.)?_?(args|cfg|conf|config|opts?|options|settings|hparams|FLAGS)$")
_PIECES = ("join", "f-string", "op", "convert")  # what makes a path of others
# How programs call the file or link that says which checkpoint is the newest.
_POINTER = re.compile(r"(^|[/_.-])(latest|newest|last|current)([/_.-][a-z_]+)*$", re.IGNORECASE)
_MOVES = (
    "os.rename", "os.replace", "os.renames", "os.symlink", "os.link", "shutil.move", "shutil.copytree",
    "shutil.copy", "shutil.copy2", "shutil.copyfile", "shutil.make_archive",
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
    if call.name in ("os.symlink", "os.replace", "os.rename") and _is_pointer(call.walk, call.get(1, "dst")):
        _points(call, call.get(0, "src"))
    return NONE


@api("shutil.rmtree")
def _removed(call: Call) -> Value:
    walk = call.walk
    path = call.get(0, "path")
    target = single(path)
    if walk.handles_failure(walk.path):
        return NONE  # what a save has left that failed
    walk.emit(
        DirectoryRemoved,
        call.node,
        target=target if isinstance(target, str) else None,
        pieces=() if is_kept_in_list(walk, path) else pieces(walk, path),
    )
    return NONE


# --- what says which checkpoint is the newest ---


def _is_pointer(walk: Walk, path: Value | None) -> bool:
    """Whether a path is that of such a file or link."""
    said = pieces(walk, path)
    return bool(said) and _POINTER.search(said[-1]) is not None


def _points(call: Call, to: Value | None) -> None:
    if said := pieces(call.walk, to):
        call.walk.emit(PointerWritten, call.node, pieces=said)


@api("builtins.open")
def _open(call: Call) -> Value:
    opened = call_library(call, call.name)
    mode = call.constant(1, "mode")
    if (
        isinstance(opened, Obj)
        and isinstance(mode, str)
        and "w" in mode
        and _is_pointer(call.walk, call.get(0, "file"))
    ):
        call.walk.establish(opened, "pointer")
    return opened


@anything("write")
def _write(call: Call, receiver: Value) -> Value | None:
    if isinstance(receiver, Obj) and call.walk.fact(receiver, "pointer"):
        _points(call, call.get(0, "s"))
    return None


@anything("write_text")
def _write_text(call: Call, receiver: Value) -> Value | None:
    if _is_pointer(call.walk, receiver):
        _points(call, call.get(0, "data"))
    return None


@anything("rename", "hardlink_to")
def _path_moved(call: Call, receiver: Value) -> Value | None:
    if isinstance(receiver, Const) or may_be_path(receiver):
        call.walk.emit(FilesMoved, call.node)
        return call.walk.unknown()
    return None


@anything("replace")
def _path_replaced(call: Call, receiver: Value) -> Value | None:
    """`str.replace` takes two texts."""
    return _path_moved(call, receiver) if len(call.args) == 1 and not isinstance(receiver, Const) else None


@api("subprocess.run", "subprocess.call", "subprocess.check_call", "subprocess.check_output", "os.system")
def _by_command(call: Call) -> Value:
    given = call.get(0, "args")
    words = call.walk.elements(given) if isinstance(given, Obj) else None
    first = words.items[0] if words is not None and words.items else given
    said = single(first)
    if said is None and isinstance(first, Sym):
        said = next((single(p) for p in call.walk.parts_of(first.key) if isinstance(p, Const)), None)
    if isinstance(said, str) and _COMMANDS.match(said):
        call.walk.emit(FilesMoved, call.node)
    return call_library(call, call.name)


_COMMANDS = re.compile(r"(sudo )?(mv|cp|rsync|ln|tar|gsutil|aws|rclone|azcopy|s5cmd)\b")


@anything("symlink_to")
def _path_linked(call: Call, receiver: Value) -> Value | None:
    made = _path_moved(call, receiver)
    if made is not None and _is_pointer(call.walk, receiver):
        _points(call, call.get(0, "target"))
    return made
