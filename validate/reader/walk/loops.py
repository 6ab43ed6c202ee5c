"""What a loop over a value goes through."""

from __future__ import annotations

import ast

from ...events import BatchesDrawn
from ...records import record
from ..nodes import around, is_exit, parents
from ..values import Elements, External, Items, Obj, StateData, Sym, Tensors, Tuple, Union, Value, What, members, union
from .core import Walk

LOADERS = {
    name: External(name) for name in ("torch.utils.data.DataLoader", "torchdata.stateful_dataloader.StatefulDataLoader")
}
EXACT_LIMIT = 16  # elements of a known list that are walked one by one


@record(frozen=True)
class Iteration:
    """The values that a loop binds, one a walk of its body.

    `exact`: these are all. `collection`: what the single value stands for each element of, where it may be modules:
    walking the body again would be the same elements again.
    """

    values: list[Value]
    exact: bool
    collection: bool = False


def left_after(walk: Walk, node: ast.AST) -> bool:
    """Whether the loop around a call is left once it is done, wherever in it the call is made."""
    for frame in reversed(walk.frames):
        above = parents(frame.file.tree)
        inner, left = node, False
        while (outer := above.get(inner)) is not None and not isinstance(outer, _FUNCTIONS):
            _, after = around(outer, inner)
            left = left or any(isinstance(s, ast.Break | ast.Return | ast.Raise) or is_exit(s) for s in after)
            if isinstance(outer, ast.For | ast.While | ast.AsyncFor):
                return left
            inner = outer
        if frame.scope not in walk.called_at:
            return False
        node = walk.called_at[frame.scope]
    return False


_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


def iterate(walk: Walk, value: Value) -> Iteration:
    """What `for x in value` binds."""
    if isinstance(value, Tuple):
        return _limited(value.items, exact=True)
    if isinstance(value, Union):
        found = [(path, iterate(walk, v)) for path, v in members(value)]
        every = [(path, v) for path, f in found for v in f.values]
        return Iteration([union(every)] if every else [], not every, any(f.collection for _, f in found))
    if isinstance(value, Tensors):
        return Iteration([value], False, True)
    if isinstance(value, Obj):
        if value.cls in LOADERS.values():
            walk.emit(BatchesDrawn, walk.here[1], loader=walk.ref(value))
        content = walk.content(value)
        if isinstance(content, Elements):
            return _limited(content.items, content.exact)
        if isinstance(content, Items):
            return _limited(tuple(key for key, _ in content.items), content.exact)
        if isinstance(value.data, StateData):
            return Iteration([walk.sym()], False, True)
        from .expressions import child

        if value.what is What.OPAQUE or value.what is What.MODULE:
            return Iteration([child(walk, value, "[*]")], False, True)
        return Iteration([walk.unknown()], False)
    if isinstance(value, External):
        return Iteration([walk.unknown()], False)
    each = Sym(walk.fresh(), isinstance(value, Sym) and value.rank)
    walk.answers(each.key, value)
    return Iteration([each], False)


def _limited(items: tuple[Value, ...], exact: bool) -> Iteration:
    if exact and len(items) <= EXACT_LIMIT:
        return Iteration(list(items), True)
    if not items:
        return Iteration([], exact=True)
    return Iteration([union([((), v) for v in items])], False, collection=True)
