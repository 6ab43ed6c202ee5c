"""The Python files that a user means by the paths on the command line."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from .errors import UserError

SKIPPED = {"__pycache__", "node_modules", "site-packages", "build", "dist"}  # folders; also those that begin with a dot


@dataclass(frozen=True)
class Source:
    """A file to look at; `path` is None for standard input, `named` when the user gave it, not a folder above it."""

    name: str
    path: Path | None
    named: bool

    def content(self) -> bytes:
        """The bytes of the file. Raises UserError when they cannot be read."""
        if self.path is None:
            if sys.stdin is None:
                raise UserError("standard input is closed; expected a Python file there")
            return sys.stdin.buffer.read()
        try:
            return self.path.read_bytes()
        except OSError as error:
            raise UserError(f"{self.name}: cannot be read: {error.strerror}; expected a Python file") from error


def find_sources(paths: Sequence[str], stdin_filename: str | None = None) -> Iterator[Source]:
    """The files that `paths` name or hold, each once, in sorted order within a folder.

    Raises UserError for a path that does not exist and for a folder without Python files: to inspect nothing is no
    success.
    """
    seen: set[str] = set()
    for given in paths:
        if given == "-":
            yield Source(stdin_filename or "<stdin>", None, named=True)
            continue
        path = Path(given)
        if not path.exists():
            raise UserError(f"{given}: no such file or folder; expected Python files, folders that hold some, or -")
        files = sorted(_below(path)) if path.is_dir() else [path]
        if not files:
            raise UserError(f"{given}: no Python files in this folder; expected at least one *.py below it")
        for file in files:
            if (real := os.path.realpath(file)) not in seen:  # `Path.resolve` raises for a link to itself
                seen.add(real)
                yield Source(str(file), file, named=file == path)


def decode(name: str, content: bytes) -> str:
    """The text of a source file. Raises UserError when it is not UTF-8."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UserError(
            f"{name}:{line}: not UTF-8 (byte 0x{content[error.start]:02x}); expected Python source"
        ) from error


def _below(folder: Path) -> Iterator[Path]:
    for parent, folders, files in os.walk(folder):
        is_environment = "pyvenv.cfg" in files
        folders[:] = [] if is_environment else [f for f in folders if f not in SKIPPED and not f.startswith(".")]
        yield from (
            Path(parent, f) for f in files if f.endswith(".py") and not f.startswith(".") and not is_environment
        )
