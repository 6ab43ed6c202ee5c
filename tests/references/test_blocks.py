"""Every Python block of SKILL.md and of the reference pages runs, or is an excerpt of a script that is generated."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from ..commands import fsdp2
from .pages import SETUP, Block, Page, Program, pages, programs
from .running import run

PAGES = pages()
LANGUAGES = {"python", "bash", "text", "toml", "yaml"}
EXCERPTS = [(page.path.stem, block) for page in PAGES for block in page.blocks if block.excerpt]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.path.stem)
def test_a_page_is_short_and_says_what_its_blocks_are(page: Page) -> None:
    assert page.text.startswith(("# ", "---\n"))
    if page.path.name != "SKILL.md":
        assert len(page.text.splitlines()) < 250
    assert page.text.count("```") == 2 * len(page.blocks)
    assert {block.language for block in page.blocks} <= LANGUAGES
    for block in page.blocks:
        if block.language == "python" and not block.excerpt:
            compile(block.text, f"{page.path.name}:{block.line}", "exec")


@pytest.mark.slow
@pytest.mark.parametrize("program", programs(), ids=lambda program: program.name)
def test_the_blocks_of_a_page_run(program: Program, tmp_path: Path) -> None:
    """And what they assert holds."""
    failed = run(program, tmp_path)
    assert not failed, failed


@pytest.mark.slow
def test_a_block_that_claims_what_is_not_so_fails(tmp_path: Path) -> None:
    (tmp_path / "wrong").mkdir()
    page = tmp_path / "wrong.md"
    page.write_text("# Wrong\n\n```python\nassert world == 3  # there are three ranks\n```\n")
    (program,) = Page(page).programs
    assert program.claims == ["there are three ranks"]
    assert 'wrong.py", line 4' in run(program, tmp_path / "wrong")


@pytest.mark.parametrize("block", [block for _, block in EXCERPTS], ids=[f"{n}-{b.line}" for n, b in EXCERPTS])
def test_an_excerpt_is_what_the_command_writes(block: Block, tmp_path: Path) -> None:
    assert block.excerpt is not None
    written = fsdp2(*shlex.split(block.excerpt), "--out", "-", cwd=tmp_path)
    assert written.returncode == 0, written.stderr
    assert flat(block.text) in flat(written.stdout)


def flat(text: str) -> str:
    """Lines without indentation, and empty ones left out."""
    return "\n" + "\n".join(line.strip() for line in text.splitlines() if line.strip()) + "\n"


def test_every_page_is_proved_by_a_run() -> None:
    """Or by a table or a command that other tests of this folder check."""
    without = {page.path.stem for page in PAGES if not page.programs}
    assert without <= {"SKILL", "convert", "launching", "plan", "torchtitan", "torch-versions"}
    assert SETUP.stem not in without
