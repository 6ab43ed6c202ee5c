"""The Python files that a user means by the paths on the command line."""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from .errors import UserError
from .records import record

# Folders that hold no source of the project; also those that begin with a dot, and virtual environments by any name.
SKIPPED = {"__pycache__", "__pypackages__", "_build", "buck-out", "build", "dist", "node_modules", "site-packages"}
SIZE_LIMIT = 5_000_000  # bytes; what is larger was not written by hand, and its syntax tree takes gigabytes

_CODING = re.compile(rb"^[ \t\f]*#.*?coding[:=][ \t]*([-_.a-zA-Z0-9]+)")  # the encoding declaration of PEP 263


class TooLarge(UserError):
    """The file is no source that somebody wrote."""


@record(frozen=True)
class Source:
    """A file to look at, found by the path `given` on the command line.

    `path` is None for standard input; `named` when the user gave it, not a folder above it.
    """

    name: str
    path: Path | None
    named: bool
    given: str = ""
    problem: str = ""  # why it cannot be read, where that is known already

    def content(self) -> bytes:
        """The bytes of the file. Raises UserError when they cannot be read, TooLarge among them."""
        if self.problem:
            raise UserError(self.problem)
        if self.path is None:
            if sys.stdin is None:
                raise UserError("standard input is closed; expected a Python file there")
            return sys.stdin.buffer.read()
        try:
            status = self.path.stat()
            if not stat.S_ISREG(status.st_mode):  # reading a pipe or a device may never end
                raise UserError(f"{self.name}: not a regular file; expected a Python file, or - for standard input")
            if status.st_size > SIZE_LIMIT:
                raise TooLarge(
                    f"{self.name}: larger than {SIZE_LIMIT // 1_000_000} MB; expected Python source written by hand"
                )
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
            yield Source(stdin_filename or "<stdin>", None, named=True, given=stdin_filename or ".")
            continue
        if not os.path.lexists(given):  # a broken link exists, and is told to be unreadable
            raise UserError(f"{given}: no such file or folder; expected Python files, folders that hold some, or -")
        is_folder = Path(given).is_dir()
        empty = True
        for found in _below(given, given) if is_folder else [Source(given, Path(given), named=True, given=given)]:
            empty = False
            real = os.path.realpath(found.name)
            if real not in seen:
                seen.add(real)
                yield found
        if empty:
            raise UserError(f"{given}: no Python files in this folder; expected at least one *.py below it")


def encoding_of(content: bytes) -> str:
    """The encoding of a source file: as it declares (PEP 263), or `utf-8-sig`, with a byte order mark or without."""
    for line in content.split(b"\n", 2)[:2]:
        if match := _CODING.match(line):
            declared = match[1].decode()
            return "utf-8-sig" if declared.lower().replace("_", "-") in ("utf-8", "utf8") else declared
    return "utf-8-sig"


def decode(name: str, content: bytes) -> str:
    """The text of a source file, without a byte order mark.

    Raises UserError when it is not in its encoding.
    """
    encoding = encoding_of(content)
    try:
        return content.decode(encoding)
    except UnicodeDecodeError as error:
        line_number = content.count(b"\n", 0, error.start) + 1
        shown = "UTF-8" if encoding == "utf-8-sig" else encoding
        raise UserError(
            f"{name}:{line_number}: not {shown} (byte 0x{content[error.start]:02x}); expected Python source"
        ) from error
    except (LookupError, ValueError) as error:  # no such encoding, or one that does not make text of bytes
        raise UserError(f"{name}: {encoding!r} is no encoding of text; expected Python source") from error


def _below(folder: str, given: str) -> Iterator[Source]:
    """The Python files in a folder, in the order of their names; links to folders are not followed."""
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as error:
        problem = f"{folder}: cannot be listed: {error.strerror}; expected a folder that can be read"
        yield Source(folder, Path(folder), named=False, given=given, problem=problem)
        return
    if any(entry.name == "pyvenv.cfg" for entry in entries):
        return
    for entry in entries:
        if entry.name.startswith("."):
            continue
        path = os.path.normpath(entry.path)
        if entry.is_dir(follow_symlinks=False):
            if entry.name not in SKIPPED:
                yield from _below(path, given)
        elif entry.name.endswith(".py") and _is_regular(entry):
            yield Source(path, Path(path), named=False, given=given)


def _is_regular(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file()
    except OSError:  # a link to itself
        return False
