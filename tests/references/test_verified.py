"""`references/verified.md` tells of the pages as they are."""

from __future__ import annotations

import datetime
from importlib.metadata import version
from pathlib import Path

import pytest

from . import pages, verified

AGAIN = "run `python -m tests.references` and read the difference"


def test_the_table_is_of_the_pages_as_they_are() -> None:
    known = verified.read()
    programs = pages.programs()
    assert list(known) == [program.name for program in programs], AGAIN
    for program in programs:
        assert known[program.name].digest == program.digest, f"{program.name} is not as it was run: {AGAIN}"
        assert [verified.cells(row)[0] for row in known[program.name].rows] == program.claims, AGAIN


def test_every_row_says_test_torch_and_date() -> None:
    installed = version("torch").split("+")[0]
    rows = [row for what in verified.read().values() for row in what.rows]
    assert len(rows) > 200
    for row in rows:
        claim, test, torch, date = verified.cells(row)
        assert claim and test.startswith("`["), row
        assert torch == installed, f"it was run with torch {torch}, this is {installed}: {AGAIN} --all"
        assert datetime.date.fromisoformat(date), row


def test_a_page_that_has_changed_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its digest differs, and so does that of all pages when the set-up changes."""
    page = tmp_path / "page.md"
    page.write_text("# Page\n\n```python\nassert world == 2  # two\n```\n")
    (before,) = pages.Page(page).programs
    page.write_text("# Page\n\n```python\nassert world != 3  # two\n```\n")
    (after,) = pages.Page(page).programs
    digest = after.digest
    assert before.digest != digest
    monkeypatch.setattr(pages, "setup_text", lambda: "rank = 0")
    assert after.digest != digest
