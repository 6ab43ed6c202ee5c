"""Frozen dataclasses that are quick to make.

What `dataclasses` does at run time to forbid assignment is most of the time that it takes to make a class, and makes
instances three times slower: `lint` starts with some hundred of these classes and makes many thousand instances.
mypy forbids assignment all the same.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as record
else:

    def record(*, frozen: bool, eq: bool = True, **options: Any) -> Callable[[type], type]:
        """`dataclasses.dataclass`, where `frozen` is a promise to the type checker, and to what hashes instances."""
        return dataclasses.dataclass(eq=eq, unsafe_hash=frozen and eq, **options)


__all__ = ["record"]
