"""Keys that match a pattern, and what to say where none does."""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Iterable, Sequence

from .pickles import shown


def matching(keys: Iterable[str], pattern: str) -> list[str]:
    """Those of the keys that the pattern matches, by the rules of shells; upper case is not lower case."""
    return [key for key in keys if fnmatch.fnmatchcase(key, pattern)]


def expected(keys: Sequence[str], pattern: str, owner: str) -> str:
    """What a user may have meant by a pattern that matches none of the owner's keys."""
    near = [key for key in keys if pattern in key] or difflib.get_close_matches(pattern, keys[:10_000])
    hint = f"near it: {', '.join(map(shown, near[:3]))}" if near else f"{owner} has {len(keys)} keys"
    return f"expected a pattern such as '*.weight'; {hint}"
