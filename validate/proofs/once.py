"""A property that is computed once, also where several threads ask for it at the same time: the others wait."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")


class once(Generic[T]):
    """`functools.cached_property`, which from Python 3.12 on holds no lock, with one of each object's own."""

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self._compute = compute
        self._name = compute.__name__
        self.__doc__ = compute.__doc__

    @overload
    def __get__(self, holder: None, owner: type) -> once[T]: ...
    @overload
    def __get__(self, holder: object, owner: type) -> T: ...
    def __get__(self, holder: object | None, owner: type) -> T | once[T]:
        if holder is None:
            return self
        held = vars(holder)  # what is found there goes before this, which has no `__set__`
        with held.setdefault(f"{self._name} is computed", threading.RLock()):
            if self._name not in held:
                held[self._name] = self._compute(holder)
            value: T = held[self._name]
            return value
