"""Every error message that a page quotes is one that the code of a page was seen to raise."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import pytest

from .pages import Page, pages, raised

MESSAGE = re.compile(r"`(\w*(?:Error|Exception): [^`]+)`")


@functools.cache
def seen() -> tuple[str, ...]:
    """The messages that the blocks of all pages wait for, and so have been seen."""
    blocks = (block for page in pages() for block in page.blocks if block.language == "python" and not block.excerpt)
    return tuple(message for block in blocks for message in raised(block.text))


def unproved(page: Page) -> list[str]:
    """The messages quoted in a page that nothing was seen to raise."""
    return [
        quoted for quoted in MESSAGE.findall(page.prose) if not any(quoted.strip() in message for message in seen())
    ]


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.path.stem)
def test_every_message_is_raised_by_a_block(page: Page) -> None:
    assert unproved(page) == []


def test_a_message_that_nothing_raises_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# P\n\nIt says `ValueError: no such thing`, or `AssertionError: FSDP does not support deepcopy`.\n"
    )
    assert unproved(Page(page)) == ["ValueError: no such thing"]
