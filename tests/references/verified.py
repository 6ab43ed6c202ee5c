"""The table `references/verified.md`: what the runs of the pages' code confirmed, with which torch, and when."""

from __future__ import annotations

import re
from dataclasses import dataclass

from .pages import VERIFIED, Program

HEAD = """# What has been run

Each claim that the code of a page makes; the test whose run confirmed it, `test_the_blocks_of_a_page_run[...]` of
`tests/references/test_blocks.py`; the version of torch, and the day. To look a claim up in, not to read. Written by
`python -m tests.references`; a test fails when a page has changed since.
"""
TABLE = "| claim | test | torch | date |\n|---|---|---|---|\n"
SECTION = re.compile(r"^## (\S+)\n\n<!-- (\w+) -->\n\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Confirmed:
    """A program that ran: `digest` is of its text, `rows` are the lines of the table."""

    digest: str
    rows: tuple[str, ...]


def read() -> dict[str, Confirmed]:
    """What the file says, by the name of the program."""
    text = VERIFIED.read_text() if VERIFIED.exists() else ""
    return {
        name: Confirmed(digest, tuple(body.strip().splitlines()[2:])) for name, digest, body in SECTION.findall(text)
    }


def confirmed(program: Program, torch: str, date: str) -> Confirmed:
    """The rows of a program whose run has succeeded."""
    test = f"`[{program.name}]`"
    rows = (f"| {claim.replace('|', chr(92) + '|')} | {test} | {torch} | {date} |" for claim in program.claims)
    return Confirmed(program.digest, tuple(rows))


def write(found: dict[str, Confirmed]) -> None:
    """Write the file."""
    parts = [
        f"## {name}\n\n<!-- {what.digest} -->\n\n{TABLE}" + "".join(f"{row}\n" for row in what.rows)
        for name, what in found.items()
    ]
    VERIFIED.write_text("\n".join([HEAD, *parts]))


def cells(row: str) -> list[str]:
    """The cells of a row."""
    return [cell.replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", row)[1:-1] for cell in [cell.strip()]]
