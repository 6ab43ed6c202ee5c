"""Whether a mere import of the main module leads to a place: no `if __name__ == "__main__"` stands before it."""

from __future__ import annotations

import ast
import functools
import sys
from pathlib import Path
from types import FrameType


def reached_by_import(frame: FrameType | None) -> bool | None:
    """Whether importing the main module would come to this frame; None where that cannot be told."""
    main = sys.modules["__main__"]
    while frame is not None and not (frame.f_code.co_name == "<module>" and frame.f_globals is vars(main)):
        frame = frame.f_back
    if frame is None or Path(frame.f_code.co_filename).name == "__main__.py":
        return None  # on another thread, or the main module of a package, which is never imported anew
    guarded = _guarded(frame.f_code.co_filename)
    return None if guarded is None else frame.f_lineno not in guarded


@functools.cache
def _guarded(file: str) -> frozenset[int] | None:
    """The lines of a module below a question for `__name__`."""
    try:
        tree = ast.parse(Path(file).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return None
    lines: set[int] = set()
    for node in tree.body:
        tested = ast.walk(node.test) if isinstance(node, ast.If) else ()
        if any(isinstance(part, ast.Name) and part.id == "__name__" for part in tested):
            lines.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return frozenset(lines)
