"""The reader: turns the source of a program into traces of events, without importing or running it.

`read` walks the program from its entry (the module's body with `__name__ == "__main__"`), through functions, classes
and the project's own modules. Functions that are not reached from there are read alone, their callers and arguments
unknown.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path

from ..records import record
from ..target import Target
from ..trace import Trace
from .program import traces
from .source import Consulted, Project, load

_API = re.compile(
    rb"fully_shard|distributed\.checkpoint|distributed\s+import|init_process_group|async_save|FSDPModule"
    rb"|distributed\.fsdp|torchdata|get_optimizer_state_dict|get_model_state_dict|init_device_mesh"
)
# A script that trains and leaves all of that to modules of its own.
_ENTRY = re.compile(rb"""__name__\s*==\s*["']__main__""")
_TRAINS = re.compile(rb"torch\.distributed|\.backward\(")


@record(frozen=True)
class Reading:
    """What was read: one trace for the program, then one for each function that it does not reach.

    `files` are those that were looked into, the program's own modules among them; `consulted` what was looked for.
    """

    traces: tuple[Trace, ...]
    files: tuple[str, ...]
    consulted: Consulted


def mentions_api(source: bytes) -> bool:
    """Whether a file may have to do with FSDP2 or DCP at all: a cheap test that spares most files the parsing."""
    return _API.search(source) is not None or (_TRAINS.search(source) is not None and _ENTRY.search(source) is not None)


def read(
    path: Path,
    *,
    text: str | None = None,
    torch: str | None = None,
    texts: Mapping[str, str] | None = None,
) -> Reading:
    """Read the program that starts at `path`, whose content is `text` where given.

    Modules that it imports are looked for in its folder, the folders of its packages, and the root of its project;
    `texts` holds, by their real paths, what some of them are taken to contain. `torch` is the release that it is
    written for, where the project's own pin does not count. Raises UserError with one line when the file is not found,
    is not UTF-8 or does not parse.
    """
    file = load(path, text)
    project = Project.around(path, texts)
    found = traces(file, project)
    target = Target(path, text, torch)
    kept = [dataclasses.replace(t, target=target) for t in found if t.events or t.notes or t is found[0]]
    return Reading(tuple(kept), tuple(sorted({file.name, *project.names()})), project.consulted())
