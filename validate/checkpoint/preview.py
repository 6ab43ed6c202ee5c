"""Plain values from a checkpoint as one short line, however large or deep they are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .archives import Mentioned, Opaque
from .pickles import shown

LIMIT = 160  # characters
DEEPEST = 12


def preview(value: Any, limit: int = LIMIT) -> str:
    """The value, cut at `limit` characters; no more of it is looked at than is shown."""
    text = ""
    for piece in _pieces(value, 0):
        text += piece
        if len(text) > limit:
            return text[: limit - 3] + "..."
    return text


def _pieces(value: Any, depth: int) -> Iterator[str]:
    if isinstance(value, Opaque):
        yield f"<opaque: asks for {shown(value.asked)}>"
    elif isinstance(value, Mentioned):
        yield f"<tensor {value.dtype} {list(value.sizes)}>"
    elif isinstance(value, (str, bytes)):
        yield shown(repr(value[:LIMIT])) + ("..." if len(value) > LIMIT else "")
    elif depth > DEEPEST:
        yield "..."
    elif isinstance(value, dict):
        yield "{"
        for number, (key, item) in enumerate(value.items()):
            yield ", " if number else ""
            yield from _pieces(key, depth + 1)
            yield ": "
            yield from _pieces(item, depth + 1)
        yield "}"
    elif isinstance(value, (list, tuple, set)):
        brackets = {list: "[]", tuple: "()", set: "{}"}[type(value)]
        yield brackets[0]
        for number, item in enumerate(value):
            yield ", " if number else ""
            yield from _pieces(item, depth + 1)
        yield ",)" if type(value) is tuple and len(value) == 1 else brackets[1]
    else:
        yield shown(str(value) if not isinstance(value, int) or abs(value) < 2**256 else "a very large number")
