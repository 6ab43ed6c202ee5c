"""`references/plan.md`: its commands print what it says; of planning at scale, all but this machine's seconds."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ..references.pages import REFERENCES, Page, transcript
from .test_reality import NET


def without_seconds(text: str) -> list[list[str]]:
    """Ranks, items, and bytes of plans of each row of the table of planning; of other lines, all words."""
    lines = [line.split() for line in text.splitlines() if " most of it is " not in line]
    return [line[:5] if line and line[-1] in ("measured", "extrapolated") else line for line in lines]


@pytest.mark.matrix
@pytest.mark.slow
def test_the_commands_of_the_page_print_what_it_says(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")  # for --plot
    shutil.copy(NET, tmp_path / "my_model.py")
    page = Page(REFERENCES / "plan.md")
    assert len(page.blocks) == 2 * 5
    for printed, expected in transcript(page, tmp_path):
        assert without_seconds(printed) == without_seconds(expected)
