"""The reference pages as programs: what their code blocks run, and what they claim.

The Python blocks of a page are one program, in the order of the page, after the block of `setup.md`; it runs on two
ranks. A comment on the line before a block changes that, from there on:

    <!-- 4 ranks -->            a new program, on four ranks
    <!-- program, 2 ranks -->   this block alone, without the set-up, as a script of its own
    <!-- excerpt: generate --mesh dp_shard=-1,tp=2 -->    not run: lines of the script that this command writes

A claim is an `assert`, told by the comment beside or above it, or a `with raises("Type: message")`.
"""

from __future__ import annotations

import ast
import hashlib
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from ..commands import SKILL

REFERENCES = SKILL / "references"
VERIFIED = REFERENCES / "verified.md"
SETUP = REFERENCES / "setup.md"
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
DIRECTIVE = re.compile(r"<!-- (?:(program, )?(\d+) ranks?|excerpt: (.+)) -->\n$")


@dataclass(frozen=True)
class Block:
    """A fenced block; `line` is that of its first line of text, from 1."""

    language: str
    text: str
    line: int
    ranks: int | None = None
    alone: bool = False
    excerpt: str | None = None


@dataclass
class Program:
    """Blocks that run as one script on `ranks` ranks. `name` tells it from others, in the id of its test."""

    name: str
    ranks: int
    alone: bool
    blocks: list[Block] = field(default_factory=list)

    @property
    def script(self) -> str:
        """The blocks at the lines that they have in the page, so that a traceback tells where to look."""
        lines = [] if self.alone else ["from setup import *"]
        for block in self.blocks:
            lines += [""] * (block.line - 1 - len(lines)) + block.text.splitlines()
        return "\n".join([*lines, "" if self.alone else "end()", ""])

    @property
    def digest(self) -> str:
        """Of what is run."""
        setup = "" if self.alone else setup_text()
        return hashlib.sha256("\0".join([setup, *(block.text for block in self.blocks)]).encode()).hexdigest()[:12]

    @property
    def claims(self) -> list[str]:
        """What the run proves, each as one line."""
        return [claim for block in self.blocks for claim in claims(block.text)]


@dataclass(frozen=True)
class Page:
    """A document."""

    path: Path

    @cached_property
    def text(self) -> str:
        """All of it."""
        return self.path.read_text()

    @cached_property
    def blocks(self) -> list[Block]:
        """Its fenced blocks."""
        found = []
        for fence in FENCE.finditer(self.text):
            before = self.text[: fence.start()]
            line = before.count("\n") + 2
            options = {}
            if told := DIRECTIVE.search(before):
                alone, ranks, excerpt = told.groups()
                options = {"ranks": ranks and int(ranks), "alone": bool(alone), "excerpt": excerpt}
            found.append(Block(fence[1], fence[2], line, **options))
        return found

    @cached_property
    def prose(self) -> str:
        """The rest of it."""
        return FENCE.sub("", self.text)

    @cached_property
    def programs(self) -> list[Program]:
        """What its Python blocks run."""
        found: list[Program] = []
        current: Program | None = None
        for block in self.blocks:
            if block.language != "python" or block.excerpt:
                continue
            if current is None or block.ranks:
                name = self.path.stem + (f"-{len(found) + 1}" if found else "")
                program = Program(name, block.ranks or 2, block.alone)
                found.append(program)
                current = current if block.alone else program
            else:
                program = current
            program.blocks.append(block)
        return found


def pages() -> list[Page]:
    """SKILL.md and the pages of `references/` that are written by hand; those of the rules have tests of their own."""
    paths = [path for path in sorted(REFERENCES.glob("*.md")) if path != VERIFIED]
    assert SETUP in paths
    return [Page(SKILL / "SKILL.md"), *map(Page, paths)]


def programs() -> list[Program]:
    """Those of all pages, without the set-up, which they all begin with."""
    return [program for page in pages() if page.path != SETUP for program in page.programs]


def transcript(page: Page, cwd: Path) -> Iterator[tuple[str, str]]:
    """What each shell block of a page prints in a folder, and the block after it, which is what it should print."""
    for command, printed in zip(page.blocks[::2], page.blocks[1::2], strict=True):
        assert (command.language, printed.language) == ("bash", "text")
        script = command.text.replace("python <skill-dir>", f"'{sys.executable}' '{SKILL}'")
        process = subprocess.run(
            ["bash", "-c", script], cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        yield process.stdout, printed.text


def setup_text() -> str:
    """The block that the others start from."""
    (block,) = Page(SETUP).blocks
    return block.text


def claims(text: str) -> list[str]:
    """The claims of a block."""
    lines = text.splitlines()
    found = []
    for node in sorted(_statements(ast.parse(text)), key=lambda node: node.lineno):
        if isinstance(node, ast.Assert):
            found.append(_told(lines, node) or f"`{ast.unparse(node.test)}`")
        else:
            message = node.items[0].context_expr.args[0].value  # type: ignore[attr-defined]
            told = _told(lines, node)
            found.append(f"{told + ': ' if told else 'raises '}`{message}`")
    return found


def _statements(tree: ast.AST) -> list[ast.Assert | ast.With]:
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Assert)
        or (
            isinstance(node, ast.With)
            and isinstance(call := node.items[0].context_expr, ast.Call)
            and isinstance(call.func, ast.Name)
            and call.func.id == "raises"
        )
    ]


def _told(lines: list[str], node: ast.Assert | ast.With) -> str:
    last = node.body[0].lineno - 1 if isinstance(node, ast.With) else node.end_lineno or node.lineno
    for line in lines[node.lineno - 1 : last]:
        if "  # " in line:
            return line.split("  # ", 1)[1].strip()
    above = []
    for line in reversed(lines[: node.lineno - 1]):
        if not line.strip().startswith("# "):
            break
        above.insert(0, line.strip()[2:])
    return " ".join(above)


def raised(text: str) -> list[str]:
    """The messages that a block's `with raises(...)` wait for."""
    nodes = (node for node in _statements(ast.parse(text)) if isinstance(node, ast.With))
    return [node.items[0].context_expr.args[0].value for node in nodes]  # type: ignore[attr-defined]
