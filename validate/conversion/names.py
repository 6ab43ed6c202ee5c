"""Which keys are converted, and what they are called then."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..checkpoint.patterns import expected, matching
from ..checkpoint.pickles import shown
from ..errors import UserError
from .entries import Source, Step


def choose(source: Source, patterns: Sequence[str]) -> list[str]:
    """The keys that match a pattern, or all; without those that match one that begins with `!`."""
    keys = list(source.paths)
    matched = {pattern: set(matching(keys, pattern.removeprefix("!"))) for pattern in patterns}
    for pattern, found in matched.items():
        if not found:
            raise UserError(f"--keys {pattern}: matches none of {source.where}; {expected(keys, pattern, 'it')}")
    wanted = [found for pattern, found in matched.items() if not pattern.startswith("!")]
    unwanted = set().union(*(found for pattern, found in matched.items() if pattern.startswith("!")))
    chosen = set().union(*wanted) if wanted else set(keys)
    if not chosen - unwanted:
        raise UserError(f"{source.where}: nothing is left to convert" if keys else f"{source.where}: holds no keys")
    return [key for key in keys if key in chosen and key not in unwanted]


class Renaming:
    """`OLD=NEW`: each `*` of OLD stands for any text, which takes the place of the `*` of NEW, in order."""

    def __init__(self, given: str) -> None:
        self.given = given
        old, equals, self._new = given.partition("=")
        if not equals or not old or not self._new:
            raise UserError(f"--rename {given}: expected OLD=NEW, such as 'train.model.*=*'")
        if old.count("*") != self._new.count("*"):
            raise UserError(
                f"--rename {given}: OLD has {old.count('*')} * and NEW has {self._new.count('*')}; expected as many"
            )
        self._old = re.compile("(.*)".join(map(re.escape, old.split("*"))), re.DOTALL)

    def __call__(self, key: str) -> str | None:
        """The new key; None for one that does not match."""
        match = self._old.fullmatch(key)
        if match is None:
            return None
        first, *rest = self._new.split("*")
        return first + "".join(map("".join, zip(match.groups(), rest, strict=True)))


def rename(keys: Sequence[str], renamings: Sequence[Renaming]) -> dict[str, str]:
    """The new key of each; every renaming works on what the one before it made."""
    names = {key: key for key in keys}
    for renaming in renamings:
        changed = {key: new for key, name in names.items() if (new := renaming(name)) is not None}
        if not changed:
            near = expected([*names.values()], renaming.given, "it")
            raise UserError(f"--rename {renaming.given}: matches no key; {near}")
        names |= changed
    owners: dict[str, str] = {}
    for key, name in names.items():
        if not name or name in owners:
            clash = f"{shown(owners[name])} and {shown(key)} would both be {shown(name)}" if name else shown(key)
            raise UserError(f"--rename: {clash}; expected a name of its own for each key")
        owners[name] = key
    return names


def moved(path: tuple[Step, ...], key: str, name: str) -> tuple[Step, ...]:
    """The path of a renamed key: the steps of the old one that the new key still begins or ends with are kept."""
    if key == name:
        return path
    head: list[Step] = []
    tail: list[Step] = []
    left, rest = list(path), name
    while len(left) > 1 and rest.startswith(f"{left[0]}."):
        rest = rest[len(f"{left[0]}.") :]
        head.append(left.pop(0))
    while left and rest.endswith(f".{left[-1]}"):
        rest = rest[: -len(f".{left[-1]}")]
        tail.append(left.pop())
    if left and rest == str(left[-1]):
        rest = ""
        tail.append(left.pop())
    steps = [*head, *([rest] if rest else []), *reversed(tail)]
    return (str(steps[0]), *steps[1:])
