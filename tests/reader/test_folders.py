"""Names that come from a listed folder."""

from __future__ import annotations

import pytest
from pytorch_fsdp2_dcp.validate.reader.source import Project
from pytorch_fsdp2_dcp.validate.reader.walk import Walk
from pytorch_fsdp2_dcp.validate.reader.walk.folders import listed


def test_each_value_is_looked_at_once_however_many_ways_lead_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    walk = Walk(Project([]))
    walk.lists_folders = True
    entry = walk.unknown()
    layer = [walk.sym("op", number, entry) for number in range(4)]
    for _ in range(10):  # a million ways lead from the last of them to the entry
        layer = [walk.sym("op", number, *layer) for number in range(4)]
    asked: list[int] = []
    parts_of = Walk.parts_of
    monkeypatch.setattr(Walk, "parts_of", lambda self, key: (asked.append(key), parts_of(self, key))[1])
    assert not listed(walk, layer[0])
    assert len(asked) == 10 * 4 + 1
    walk.establish(entry, "listed")
    assert listed(walk, layer[0])
