"""Identities of the program's objects, kept without keeping the objects."""

from __future__ import annotations

import itertools
import weakref
from collections import deque
from collections.abc import Iterator
from typing import Any

import torch

from ..events import Ref

KEPT = 64  # dictionaries without tensors that are remembered, by keeping them


class Objects:
    """A table from objects to values, by identity, that forgets an object when it is gone."""

    def __init__(self) -> None:
        self._held: dict[int, tuple[weakref.ref[Any], Any]] = {}

    def get(self, key: object) -> Any:
        """The value of an object, None when it has none."""
        found = self._held.get(id(key))
        return found[1] if found is not None and found[0]() is key else None

    def set(self, key: object, value: Any) -> None:
        """Give an object its value. Raises TypeError for an object that cannot be referred to weakly."""
        number = id(key)

        def forget(gone: weakref.ref[Any]) -> None:
            if (held := self._held.get(number)) is not None and held[0] is gone:
                del self._held[number]

        self._held[number] = (weakref.ref(key, forget), value)

    def __iter__(self) -> Iterator[Any]:
        """The living objects."""
        return (key for reference, _ in list(self._held.values()) if (key := reference()) is not None)


class Dictionaries:
    """The same for dictionaries, which Python cannot refer to weakly.

    One of plain values is small, and the last few are simply kept. One that holds tensors is recognised by its address
    and its first tensor; one that holds objects, or parameters (torch cannot swap one that is referred to weakly), by
    its address and its keys.
    """

    def __init__(self) -> None:
        self._held: dict[int, tuple[weakref.ref[torch.Tensor] | tuple[Any, ...], Any]] = {}
        self._kept: deque[tuple[dict[Any, Any], Any]] = deque(maxlen=KEPT)

    def get(self, key: dict[Any, Any]) -> Any:
        """The value of a dictionary, None when it has none."""
        if (found := self._held.get(id(key))) is not None:
            mark, value = found
            if mark == tuple(key) if isinstance(mark, tuple) else mark() is first_tensor(key):
                return value
        return next((value for kept, value in self._kept if kept is key), None)

    def set(self, key: dict[Any, Any], value: Any) -> None:
        """Give a dictionary its value."""
        first = first_tensor(key)
        if first is None and _plain(key):
            self._kept.append((key, value))
        elif first is None or isinstance(first, torch.nn.Parameter):
            self._held[id(key)] = tuple(key), value
        else:
            number = id(key)

            def forget(gone: weakref.ref[torch.Tensor]) -> None:
                if (held := self._held.get(number)) is not None and held[0] is gone:
                    del self._held[number]

            self._held[number] = weakref.ref(first, forget), value


def _plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(_plain(v) for v in value.values())
    if isinstance(value, (list, tuple)):
        return all(_plain(v) for v in value)
    return value is None or isinstance(value, (bool, int, float, str, bytes))


def first_tensor(value: Any) -> torch.Tensor | None:
    """The first tensor in nested dictionaries and lists."""
    if isinstance(value, torch.Tensor):
        return value
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, (list, tuple)):
        return None
    return next((tensor for item in value if (tensor := first_tensor(item)) is not None), None)


class Identities:
    """Hands out refs."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._objects = Objects()
        self._dictionaries = Dictionaries()

    def new(self, name: str) -> Ref:
        """A ref for an object that does not exist yet; `bind` it later."""
        return Ref(next(self._numbers), name)

    def known(self, value: object) -> Ref | None:
        """The ref of an object that has one."""
        found = self._dictionaries.get(value) if isinstance(value, dict) else self._objects.get(value)
        return found if isinstance(found, Ref) else None

    def bind(self, value: object, ref: Ref) -> None:
        """Let `ref` be the identity of this object."""
        if isinstance(value, dict):
            self._dictionaries.set(value, ref)
        else:
            self._objects.set(value, ref)

    def of(self, value: object, name: str) -> Ref:
        """The ref of an object; `name` is used where it is new."""
        if (ref := self.known(value)) is None:
            ref = self.new(name)
            self.bind(value, ref)
        return ref
