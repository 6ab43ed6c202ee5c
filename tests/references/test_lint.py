"""The linter and the pages agree: it finds nothing in their code but the mistakes that they name."""

from __future__ import annotations

from pathlib import Path

import pytest
from pytorch_fsdp2_dcp.validate.reader import read
from pytorch_fsdp2_dcp.validate.rules import judge

from .pages import Page, Program, pages, setup_text

SHOWN = {"seed-article": {"FS601", "FS602", "FS701"}, "optimizer-and-precision": {"FS401"}}


def found(program: Program, folder: Path) -> set[str]:
    """The codes of what the linter finds in a program."""
    lines = program.script if program.alone else setup_text() + program.script.partition("\n")[2]
    script = folder / f"{program.name}.py"
    script.write_text(lines)
    return {finding.code for finding in judge(read(script).traces)}


@pytest.mark.parametrize("page", [page for page in pages() if page.programs], ids=lambda page: page.path.stem)
def test_what_the_linter_finds_in_a_page_is_what_the_page_warns_of(page: Page, tmp_path: Path) -> None:
    codes = {code for program in page.programs for code in found(program, tmp_path)}
    assert {code for code in codes if code not in page.text} == set()
    assert SHOWN.get(page.path.stem, set()) <= codes
