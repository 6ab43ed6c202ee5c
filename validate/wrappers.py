"""What wrappers around modules put into the names of parameters."""

from __future__ import annotations

import functools

COMPILED = "_orig_mod."  # torch.compile
WRAPPERS = (COMPILED, "_checkpoint_wrapped_module.")  # and activation checkpointing


def plain_name(name: str) -> str:
    """The name of a parameter without what wrappers put into it."""
    return functools.reduce(lambda shorter, prefix: shorter.replace(prefix, ""), WRAPPERS, name)
