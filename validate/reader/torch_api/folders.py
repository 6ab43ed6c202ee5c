"""What programs find in folders: the names, and whether a file is there."""

from __future__ import annotations

from ..values import Value
from ..walk.calls import Call
from ..walk.folders import listed, looks_inside, may_be_path
from .questions import answer, looked_at
from .table import anything, api


@api("os.listdir", "os.scandir", "os.walk", "glob.glob", "glob.iglob")
def _list(call: Call) -> Value:
    call.walk.lists_folders = True
    found = call.walk.unknown()
    if not looks_inside(call.walk):
        call.walk.establish(found, "listed")
    call.walk.asked[found.id] = "files"
    return found


@anything("iterdir", "glob", "rglob")
def _entries(call: Call, receiver: Value) -> Value | None:
    return _list(call) if may_be_path(receiver) else None


@api("os.path.exists", "os.path.isfile", "os.path.lexists")
def _exists(call: Call) -> Value:
    walk = call.walk
    walk.seen_whole = walk.seen_whole or any(listed(walk, value) for value in call.everything())
    return answer(walk, "files", call.name, *call.args)


@anything("exists", "is_file")
def _path_exists(call: Call, receiver: Value) -> Value | None:
    walk = call.walk
    walk.seen_whole = walk.seen_whole or any(listed(walk, value) for value in [receiver, *call.everything()])
    return looked_at(call, receiver)
