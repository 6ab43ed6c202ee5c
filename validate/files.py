"""Files that are replaced at once."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Sequence
from pathlib import Path

from .errors import UserError
from .report import printable


def chosen_file(flag: str, name: str, suffixes: Sequence[str]) -> Path:
    """The file that an option names for writing. Raises UserError where that will not work, before time is spent."""
    path, shown = Path(name), f"{flag} {printable(name)}"
    if path.suffix.lower() not in suffixes:
        raise UserError(f"{shown}: expected a name that ends with {' or '.join(suffixes)}")
    target = path.resolve()  # through a symbolic link, not over it
    if target.exists() and not target.is_file():
        raise UserError(f"{shown}: not a file; expected a new file, or one to replace")
    try:
        with tempfile.TemporaryFile(dir=target.parent):
            return target
    except OSError as error:
        raise UserError(
            f"{shown}: cannot be written: {error.strerror}; expected a file in a folder of yours"
        ) from error


def write_chosen(flag: str, target: Path, content: bytes) -> None:
    """Write it, new or in the place of the old one. Raises UserError."""
    try:
        mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else 0o666 & ~umask()
        replace_file(target, content, mode)
    except OSError as error:
        raise UserError(f"{flag} {printable(str(target))}: cannot be written: {error.strerror}") from error


def replace_file(path: Path, content: bytes, mode: int) -> None:
    """Write the whole file or nothing: a reader never sees half of it. Raises OSError."""
    descriptor, scratch = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        Path(scratch).chmod(mode)
        Path(scratch).replace(path)
    except BaseException:
        Path(scratch).unlink(missing_ok=True)
        raise


def umask() -> int:
    """What is taken from the permissions of new files."""
    mask = os.umask(0)  # there is no way to ask for it but to set it
    os.umask(mask)
    return mask
