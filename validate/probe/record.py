"""What a rank does, in its file, one JSON line at a time, so that nothing is lost however the rank ends."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..launch.job import Run
from ..launch.places import Places


class Recorder:
    """The record of one rank. A process that the rank forks inherits it and stays silent.

    Lines are events (`events.to_json`), or notes about events and objects: `{"note": ...}`, which `merge.py` works in
    and `notes` finds.
    """

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._pid = os.getpid()
        self._orders = itertools.count()

    @property
    def own(self) -> bool:
        """Whether this is the rank's own process and not a child of it."""
        return os.getpid() == self._pid

    def order(self) -> int:
        """The next place in the order of this rank's events."""
        return next(self._orders)

    def write(self, record: dict[str, Any]) -> None:
        """Append one line."""
        if not self.own:
            return
        data = (json.dumps(record) + "\n").encode()
        while data:
            data = data[os.write(self._fd, data) :]


def notes(run: Run, rank: int, *kinds: str) -> Iterator[dict[str, Any]]:
    """The notes of these kinds that a rank has written, in order; none where it never came to write."""
    path = Places(run.records.parent).records(rank)
    for line in path.read_text().splitlines() if path.exists() else ():
        if any(f'"{kind}"' in line for kind in kinds) and (record := json.loads(line)).get("note") in kinds:
            yield record
