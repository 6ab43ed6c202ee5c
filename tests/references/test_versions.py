"""What the page on versions says of a name's age is what the table of torch's releases says."""

from __future__ import annotations

import ast
import re

from pytorch_fsdp2_dcp.validate.api import table

from .pages import REFERENCES, Page

PAGE = Page(REFERENCES / "torch-versions.md")
ROW = re.compile(r"^\| `([^`]+)` \| (2\.\d+) \|$", re.MULTILINE)


def first(text: str) -> str | None:
    """The first release that has a name, or takes an argument; None where it came and went, or is not known."""
    node = ast.parse(text, mode="eval").body
    if isinstance(node, ast.Call):
        history = table.argument_history(ast.unparse(node.func), str(node.keywords[0].arg))
    else:
        history = table.history(text)
    have = [release for release in table.releases() if history.get(release)]
    return have[0] if have == list(table.releases())[-len(have) :] else None


def test_every_row_tells_the_first_release() -> None:
    rows = ROW.findall(PAGE.text)
    assert len(rows) > 40
    assert {name: first(name) for name, _ in rows} == dict(rows)


def test_the_page_names_the_first_and_the_last_release_that_the_table_knows() -> None:
    releases = table.releases()
    assert f"torch {releases[0]} to {releases[-1]}" in PAGE.text


def test_a_row_that_is_wrong_is_noticed() -> None:
    assert first("torch.distributed.fsdp.fully_shard(ignored_params=...)") == "2.7"
    assert first("torch.distributed.checkpoint.no_such_name") is None
