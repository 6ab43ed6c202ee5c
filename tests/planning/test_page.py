"""`references/plan.md`: its commands print what it says; of planning at scale, all but this machine's seconds."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ..commands import SKILL
from ..references.pages import REFERENCES, Page
from .test_reality import NET


def without_seconds(text: str) -> list[list[str]]:
    """Ranks, items, and bytes of plans of each row of the table of planning; of other lines, all words."""
    lines = [line.split() for line in text.splitlines() if " most of it is " not in line]
    return [line[:5] if line and line[-1] in ("measured", "extrapolated") else line for line in lines]


@pytest.mark.matrix
@pytest.mark.slow
def test_the_commands_of_the_page_print_what_it_says(tmp_path: Path) -> None:
    shutil.copy(NET, tmp_path / "my_model.py")
    blocks = Page(REFERENCES / "plan.md").blocks
    assert [block.language for block in blocks] == ["bash", "text"] * 5
    for command, printed in zip(blocks[::2], blocks[1::2], strict=True):
        script = command.text.replace("python <skill-dir>", f"'{sys.executable}' '{SKILL}'")
        process = subprocess.run(
            ["bash", "-c", script],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert without_seconds(process.stdout) == without_seconds(printed.text)
