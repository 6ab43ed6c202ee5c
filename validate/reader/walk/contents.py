"""Whether the parameters and buffers of a module hold what the program meant.

On the meta device they hold nothing, `to_empty` leaves in them whatever was in memory, and then something has to fill
each of them. Whatever might do that is taken to do it: an initialiser, a method whose source is not known, code that
could not be followed.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ...events import Kind, Loaded, Location, Unset
from ..values import NONE, Class, Const, External, Obj, Tensors, Tuple, Union, Value, What, members
from . import dtypes
from .classes import lineage
from .core import Walk, parts
from .structure import WITH_PARAMETERS, children, is_leaf

_HOLD = (Obj, Union, Tuple, Tensors)  # what is, or may have in it, a module or a tensor
PARAMETER, BUFFER = External("torch.nn.Parameter"), External("torch.nn.Buffer")


def is_tensor(value: Value) -> bool:
    """Whether it is a parameter or a buffer that the program made itself."""
    return isinstance(value, Obj) and isinstance(value.cls, External) and value.cls in (PARAMETER, BUFFER)


# --- what happens to a module ---


def note_made(walk: Walk, obj: Obj, node: ast.AST) -> None:
    """The module, or the tensor, is made here."""
    walk.store.set((obj.id, "%made"), Const(walk.at(node)))


def empty(walk: Walk, module: Obj, fact: str = "emptied") -> None:
    """What was in the module is gone by `to_empty`, or (`meta`) was never there."""
    _, inside = walk.around(module)
    for m in list(walk.modules.values()):
        if m.id == module.id or m.id in inside:
            for obj in (m, *_own(walk, m)):
                for name in ("%filled", "%loaded"):
                    if walk.store.get((obj.id, name)) is not None:
                        walk.store.set((obj.id, name), None)
    walk.establish(module, fact)


def assigned(walk: Walk, outer: Obj, name: str, value: Value) -> None:
    """`outer.name = value`, of which one may be a tensor."""
    if is_tensor(value):
        fill(walk, value)
    elif name == "data" or is_tensor(outer) or (name in ("weight", "bias") and not isinstance(outer.cls, Class)):
        fill(walk, outer)
        dtypes.forget(walk, outer)


def fill(walk: Walk, value: Value, fact: str = "filled") -> None:
    """These tensors, or those of these modules, may get values here.

    `fact`: "loaded" where only what a state dict holds does, which buffers that are not persistent are not.
    """
    if not isinstance(value, _HOLD):
        return
    todo: list[Value] = [value]
    seen: set[int] = set()
    while todo:
        for _, v in members(todo.pop()):
            if isinstance(v, Tensors):
                todo += v.of
            elif isinstance(v, Tuple):
                todo += v.items
            elif isinstance(v, Obj) and v.id not in seen:
                seen.add(v.id)
                owner = _owner(walk, v)
                if owner is not None:
                    walk.establish(owner, fact)
                    walk.store.set((owner.id, f"%{fact} on"), Const(walk.path))
                elif v.what in (What.LIST, What.DICT):
                    todo += parts(walk, v)


def _owner(walk: Walk, obj: Obj) -> Obj | None:
    """The module, or the tensor of one, that a value is or was found in."""
    at: Obj | None = obj
    while at is not None and not is_tensor(at) and walk.what(at) is not What.MODULE:
        at = at.parent[0] if at.parent is not None else None
    return at


# --- what is known of it in the end ---


def on_meta(walk: Walk, module: Obj) -> bool:
    """Whether the module was built on the meta device and nothing can have taken it from there."""
    if not walk.fact(module, "meta"):
        return False
    return not any(
        walk.fact(m, fact) for m in relatives(walk, module) for fact in ("emptied", "filled", "loaded", "elsewhere")
    )


def unset(walk: Walk, module: Obj) -> Unset | None:
    """What in the module still holds what `to_empty` left there; None where that is nothing, or not known."""
    if not walk.having("emptied"):
        return None
    around = list(relatives(walk, module))
    if not any(walk.fact(m, "emptied") for m in around) or any(walk.fact(m, "elsewhere") for m in around):
        return None
    whole = [m for m in around if m.id == module.id or walk.holds(m, module.id)]
    if any(walk.fact(m, "filled") for m in whole):
        return None
    touched = [m for m in around if walk.fact(m, "filled") or walk.fact(m, "loaded")]
    resumed = [m for m in touched if not walk.fact(m, "filled") and of_a_resume(walk, m)]
    if not touched or (resumed and all(m in resumed or m.cls == BUFFER for m in touched)):
        return Unset(everything=True) if any(walk.fact(m, "emptied") for m in whole) else None
    if any(m.parent is not None and m.parent[1].endswith("()[*]") for m in touched):
        return None  # some of its modules, who knows which
    # A run that begins has no checkpoint: where the program initialises some parameters, that is for all to be.
    begins = any(walk.fact(m, "filled") and m.cls != BUFFER for m in touched)
    loaded = any(walk.fact(m, "loaded") and not (begins and _may_be_passed_over(walk, m)) for m in whole)
    parameters: dict[str, Obj] = {}
    buffers: list[str] = []
    _collect(walk, module, "", loaded, (parameters, buffers), set())
    if not parameters and not buffers:
        return None
    first = walk.get((next(iter(parameters.values())).id, "%made")) if parameters else None
    made = first.value if isinstance(first, Const) and isinstance(first.value, Location) else None
    return Unset(parameters=tuple(parameters), buffers=tuple(buffers), made=made)


def of_a_resume(walk: Walk, module: Obj) -> bool:
    """Whether the module is loaded on one branch alone, by a run that goes on: one that begins has nothing to load."""
    around = {module.id, *walk.around(module)[0]} if _may_be_passed_over(walk, module) else set()
    for loaded in walk.events(Loaded, 0) if around else ():
        entries = loaded.entries or ()
        models = {e.of.id for e in entries if e.kind is Kind.MODEL and e.of is not None}
        if models & around and any(e.kind is Kind.OPTIMIZER for e in entries):
            return True
    return False


def _may_be_passed_over(walk: Walk, module: Obj) -> bool:
    """Whether the module is loaded on one branch alone, that need not be the one taken."""
    paths = [v.value for _, v in members(walk.get((module.id, "%loaded on")) or NONE) if isinstance(v, Const)]
    return len(paths) == 1 and isinstance(paths[0], tuple) and not set(paths[0]) <= set(walk.path)


def _collect(
    walk: Walk, module: Obj, prefix: str, loaded: bool, found: tuple[dict[str, Obj], list[str]], seen: set[int]
) -> None:
    if module.id in seen or walk.fact(module, "filled"):
        return
    seen.add(module.id)
    loaded = loaded or (bool(prefix) and walk.fact(module, "loaded"))
    if is_leaf(module):
        if walk.fact(module, "tied"):  # whoever sets the other end sets this one
            return
        if isinstance(module.cls, External) and module.cls.name.rpartition(".")[2] in WITH_PARAMETERS and not loaded:
            found[0][prefix + "weight"] = module
        return
    for name, obj in _named(walk, module):
        if walk.fact(obj, "filled") or _set_on_the_way(module, name):
            continue
        if obj.cls == PARAMETER and not loaded:
            found[0][prefix + name] = obj
        elif obj.cls == BUFFER and (not loaded or walk.fact(obj, "not persistent")):
            found[1].append(prefix + name)
    for name, child in children(walk, module)[0]:
        if walk.what(child) is What.MODULE:
            _collect(walk, child, f"{prefix}{name}.", loaded, found, seen)


def relatives(walk: Walk, module: Obj) -> Iterator[Obj]:
    """The module, those that hold it, those in it, and the tensors that these own."""
    outside, inside = walk.around(module)
    for m in list(walk.modules.values()):
        if m.id == module.id or m.id in outside or m.id in inside:
            yield m
            yield from _own(walk, m)


def _own(walk: Walk, module: Obj) -> list[Obj]:
    return [obj for _, obj in _named(walk, module)]


def _named(walk: Walk, module: Obj) -> list[tuple[str, Obj]]:
    """The parameters and buffers that the program made the module's own."""
    found = []
    for name in walk.store.names(module.id):
        value = walk.store.get((module.id, name)) if name.startswith(".") else None
        if value is not None:
            found += [(name[1:], v) for _, v in members(value) if isinstance(v, Obj) and is_tensor(v)]
    return found


def _set_on_the_way(module: Obj, name: str) -> bool:
    """Whether `forward`, or a method that it leads to, assigns the attribute."""
    if not isinstance(module.cls, Class):
        return False
    methods: dict[str, ast.FunctionDef | ast.AsyncFunctionDef] = {}
    for base in reversed(lineage(module.cls)[0]):
        if isinstance(base, Class):
            methods.update({n.name: n for n in base.node.body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)})
    todo, seen = ["forward"], set[str]()
    while todo:
        method = methods.get(todo.pop())
        if method is None or method.name in seen:
            continue
        seen.add(method.name)
        for node in ast.walk(method):
            if isinstance(node, ast.Attribute):
                if node.attr == name and not isinstance(node.ctx, ast.Load):
                    return True
                todo.append(node.attr)
            elif isinstance(node, ast.Constant) and node.value == name:  # register_buffer(name, ...), setattr
                return True
    return False
