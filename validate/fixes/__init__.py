"""Mechanical repairs: for some rules, the text of the file with one finding mended.

Each module has the fixer of one rule: a function that proposes new texts for a file and a finding in it, the likeliest
first. A proposal is a guess by the shape of the code. Whether it mends the finding and breaks nothing else is decided
by reading the program again (`fixing.py`), so a fixer need not know what the rule knows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ..findings import Finding
from .awaiting import awaited_at_the_end
from .full_state import kept_sharded
from .gathering import gathered_for_torch_save
from .guards import out_of_the_guard
from .hooks import called_with_hooks
from .main_guard import started_under_a_guard
from .paths import imported_from_the_public_path
from .proposal import Proposal
from .script import Script

Fixer = Callable[[Script, Finding], Iterator[Proposal]]

FIXERS: dict[str, Fixer] = {
    "FS102": out_of_the_guard,
    "FS403": called_with_hooks,
    "FS601": gathered_for_torch_save,
    "FS602": kept_sharded,
    "FS801": awaited_at_the_end,
    "FS804": started_under_a_guard,
    "FS906": imported_from_the_public_path,
}

__all__ = ["FIXERS", "Fixer", "Proposal", "Script"]
