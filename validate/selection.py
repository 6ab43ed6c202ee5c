"""Which rules the user means by codes (`FS401`), the beginnings of codes (`FS4`) and names (`forward-bypassed`)."""

from __future__ import annotations

from collections.abc import Iterable

from .errors import UserError
from .rules import RULES
from .suppressions import UNUSED

NAMES: dict[str, str] = {UNUSED[0]: UNUSED[1], **{rule.code: rule.name for rule in RULES}}


def split(codes: str) -> tuple[str, ...]:
    """The parts of a comma-separated list."""
    return tuple(filter(None, (part.strip() for part in codes.split(","))))


def matching(where: str, given: Iterable[str]) -> frozenset[str]:
    """The codes that are meant. Raises UserError, which says `where`, for what means no rule."""
    found: set[str] = set()
    for word in given:
        named = {code for code, name in NAMES.items() if name == word.lower() or code.startswith(word.strip().upper())}
        if not named or not word.strip():
            raise UserError(
                f"{where} {word}: no rule has a code that begins so, nor that name; `fsdp2 explain` lists the rules"
            )
        found |= named
    return frozenset(found)
