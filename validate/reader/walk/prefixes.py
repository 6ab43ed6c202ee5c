"""What wrappers put into the names of a module's parameters, and so into the keys of its state dict."""

from __future__ import annotations

import ast
import dataclasses
import functools
import re

from ...wrappers import COMPILED
from ..nodes import last_name, nodes
from ..values import Const, Obj, StateData, Sym, Union, Value, Wrapped, single
from .core import Walk

# What programs speak of that take the prefix out of names, or look behind the wrapper.
_KNOWS = re.compile(r"_orig_mod|is_compiled_module|OptimizedModule|consume_prefix|unwrap")


def wrap(value: Value, outside: bool = False) -> Value:
    """A module as it is after `torch.compile`; `outside`: after a wrapper was put around what that had made."""
    if isinstance(value, Union):
        return Union(tuple((path, wrap(v, outside)) for path, v in value.members))
    wrapped = isinstance(value, Obj) and (isinstance(value.data, Wrapped) if outside else value.data is None)
    return dataclasses.replace(value, data=Wrapped(outside)) if isinstance(value, Obj) and wrapped else value


def unwrap(value: Value) -> Value:
    """The module itself, on which methods of the program run also where they are called on the wrapper."""
    if isinstance(value, Obj) and isinstance(value.data, Wrapped):
        return dataclasses.replace(value, data=None)
    return value


def of_keys(walk: Walk, module: Obj, by_helper: bool = False) -> str | None:
    """What is in the keys of a module's state dict; the helpers take out what no other wrapper stands around."""
    facts = ("wrapped outside",) if by_helper else ("wrapped", "wrapped outside")
    is_wrapped = isinstance(module.data, Wrapped) and (module.data.outside or not by_helper)
    inside = (m == module or walk.holds(module, m.id) for fact in facts for m in walk.having(fact))
    if not (is_wrapped or any(inside)) or walk.fact(module, "elsewhere") or any(map(_knows, walk.files())):
        return None
    return COMPILED


def name_keys(walk: Walk, key: Sym, state: Obj) -> None:
    """`key` stands for each key of a state dict."""
    if isinstance(state.data, StateData) and state.data.prefix is not None:
        walk.store.set((key.key, "%prefix"), Const(state.data.prefix))


def named_by(walk: Walk, key: Value) -> str | None:
    """What is in the keys that this one stands for, where nothing is known to have changed them."""
    found = single(walk.store.get((key.key, "%prefix"))) if isinstance(key, Sym) else None
    return found if isinstance(found, str) else None


@functools.lru_cache(maxsize=512)
def _knows(tree: ast.Module) -> bool:
    """Whether a file may take the prefix out again."""
    for node in nodes(tree):
        text = node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else last_name(node)
        if _KNOWS.search(text):
            return True
    return False
