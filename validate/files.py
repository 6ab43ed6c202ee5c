"""Files that are replaced at once."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


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
