"""Calls of unknown source that sound as though they end what was begun."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ...events import GroupDestroyed

if TYPE_CHECKING:
    from .calls import Call

_ENDS = re.compile(r"destroy|clean_?up|tear_?down|shut_?down|finali[sz]e", re.IGNORECASE)


def called(call: Call, name: str) -> None:
    """Something without source is called: by its name, it may destroy the process group."""
    if _ENDS.search(name.rpartition(".")[2]):
        call.walk.emit(GroupDestroyed, call.node)
