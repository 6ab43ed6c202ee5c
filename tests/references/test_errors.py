"""Every error message that a page quotes is one that its code was seen to raise."""

from __future__ import annotations

import re

import pytest

from .pages import Page, pages, raised

MESSAGE = re.compile(r"`(\w*(?:Error|Exception): [^`]+)`")


def unproved(page: Page) -> list[str]:
    """The messages quoted in the prose that no block of the page waits for."""
    blocks = [block for block in page.blocks if block.language == "python" and not block.excerpt]
    seen = [message for block in blocks for message in raised(block.text)]
    return [quoted for quoted in MESSAGE.findall(page.prose) if not any(quoted in message for message in seen)]


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.path.stem)
def test_every_message_is_raised_by_a_block_of_the_page(page: Page) -> None:
    assert unproved(page) == []


def test_a_message_that_nothing_raises_is_found(tmp_path) -> None:
    page = tmp_path / "page.md"
    page.write_text('# P\n\nIt says `ValueError: no`.\n\n```python\nwith raises("ValueError: yes"):\n    x()\n```\n')
    assert unproved(Page(page)) == ["ValueError: no"]
