"""Builtins and the standard library, as far as values flow through them."""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Callable
from typing import Any

from ...events import BatchesPassedOver, Form
from ..values import (
    NONE,
    Bound,
    Class,
    Const,
    Elements,
    External,
    Function,
    Items,
    Obj,
    Part,
    Partial,
    Path,
    Sym,
    Tensors,
    Tuple,
    Value,
    What,
    members,
    ranked,
    single,
    union,
)
from ..walk import contents, division, passes, prefixes, unequal
from ..walk.assignment import extend, set_attribute
from ..walk.calls import Call, call_library, call_value, find_method
from ..walk.classes import lineage
from ..walk.conditions import OF_DTENSORS
from ..walk.core import Walk, parts
from ..walk.filled import put, read
from ..walk.folders import kept_in_list
from ..walk.lookup import attribute
from ..walk.loops import iterate
from ..walk.parts import part_in, read_part
from ..walk.structure import CONTAINERS, WITH_PARAMETERS, WITHOUT_PARAMETERS
from .table import anything, api, method

_CONVERSIONS: dict[str, Callable[[Any], object]] = {"int": int, "str": str, "float": float, "bool": bool}
_LIMIT = 24  # elements kept of a list that grows


@api(
    "builtins.print",
    "builtins.len",
    "builtins.id",
    "builtins.hash",
    "builtins.repr",
    "builtins.type",
    "builtins.sum",
    "builtins.any",
    "builtins.all",
)
def _reads(call: Call) -> Value:
    name = call.name.rpartition(".")[2]
    value = call.args[0] if call.args else None
    if name == "type" and isinstance(value, Obj) and value.cls is not None and len(call.args) == 1:
        return value.cls
    if name == "len" and value is not None:
        content = call.walk.content(value) if isinstance(value, Obj) else None
        if isinstance(value, Tuple):
            return Const(len(value.items))
        if isinstance(content, Elements | Items) and content.exact and not call.walk.loops:
            return Const(len(content.items))
        made = call.walk.sym()
        call.walk.answers(made.key, value)
        unequal.counted(call.walk, made, value)
        return made
    if name == "sum" and (part := part_in(call.walk, *call.args)) is not None:
        return part
    return (
        call.walk.sym(rank=any(isinstance(v, Sym) and v.rank for v in call.args)) if name == "sum" else call.walk.sym()
    )


@api(
    "builtins.int",
    "builtins.str",
    "builtins.float",
    "builtins.bool",
    "builtins.abs",
    "builtins.min",
    "builtins.max",
    "builtins.round",
    "builtins.divmod",
)
def _converted(call: Call) -> Value:
    name = call.name.rpartition(".")[2]
    value = call.args[0] if call.args else NONE
    if len(call.args) == 1 and isinstance(value, Const) and name in _CONVERSIONS:
        with contextlib.suppress(TypeError, ValueError, OverflowError):
            return Const(_CONVERSIONS[name](value.value))
    if name in ("int", "bool", "float") and len(call.args) == 1 and isinstance(value, Sym):
        return value
    if (part := _part(call, name)) is not None:
        return part
    return call.walk.sym("convert", name, *call.args, rank=any(map(ranked, call.args)))


def _part(call: Call, name: str) -> Value | None:
    """What is made of a number that is of one rank's part alone; a pending one is read by `float`."""
    if name in ("float", "int") and len(call.args) == 1 and isinstance(call.node, ast.Call) and call.node.args:
        for _, v in members(call.args[0]):
            if isinstance(v, Part) and v.pending:
                return read_part(call.walk, v, call.node, call.node.args[0])
    return part_in(call.walk, *call.args)


@api(
    "builtins.list",
    "builtins.set",
    "builtins.sorted",
    "builtins.reversed",
    "builtins.iter",
    "builtins.frozenset",
    "collections.deque",
)
def _listed(call: Call) -> Value:
    if not call.args:
        return call.walk.new_list([])
    since = call.walk.seen
    found = iterate(call.walk, call.args[0])
    if call.name == "builtins.iter":
        passes.begun(call.walk, since)
    values = found.values[::-1] if call.name == "builtins.reversed" else found.values
    return unequal.follow(call.walk, call.walk.new_list(values, found.exact), call.args[0])


@api("builtins.tuple")
def _tupled(call: Call) -> Value:
    if not call.args:
        return Tuple(())
    found = iterate(call.walk, call.args[0])
    return Tuple(tuple(found.values)) if found.exact else call.walk.new_list(found.values, exact=False)


@api("builtins.enumerate")
def _enumerated(call: Call) -> Value:
    if not call.args:
        return call.walk.unknown()
    found = iterate(call.walk, call.args[0])
    pairs = [Tuple((Const(i) if found.exact else call.walk.sym(), v)) for i, v in enumerate(found.values)]
    return unequal.follow(call.walk, call.walk.new_list(pairs, found.exact), call.args[0])


@api("builtins.zip")
def _zipped(call: Call) -> Value:
    found = [iterate(call.walk, value) for value in call.args]
    if not found or not all(f.values for f in found):
        return call.walk.new_list([], exact=True)
    if all(f.exact for f in found) and len({len(f.values) for f in found}) == 1:
        return call.walk.new_list([Tuple(row) for row in zip(*(f.values for f in found), strict=True)])
    return call.walk.new_list([Tuple(tuple(union([((), v) for v in f.values]) for f in found))], exact=False)


@api("builtins.range", "itertools.count", "tqdm.trange", "tqdm.auto.trange")
def _range(call: Call) -> Value:
    division.called(call, call.name)
    each = call.walk.sym()
    if call.name == "builtins.range" and len(call.args) == 1:
        call.walk.store.set((each.key, "%below"), call.args[0])
    made = call.walk.new_list([each], exact=False)
    if call.name != "builtins.range":
        return made
    start, end, step = ((NONE, *call.args, NONE) if len(call.args) == 1 else (*call.args, NONE, NONE))[:3]
    return unequal.follow(call.walk, unequal.part(call.walk, made, (start, end, step)), end)


@api("tqdm.tqdm", "tqdm.auto.tqdm", "itertools.cycle", "itertools.islice")
def _same_elements(call: Call) -> Value:
    division.called(call, call.name)
    if call.name == "itertools.islice" and len(call.args) > 2:
        call.walk.emit(BatchesPassedOver, call.node)
    given = call.get(0, "iterable")
    if given is None:
        return call.walk.unknown()
    if call.name == "itertools.islice" and unequal.is_part(call.walk, given):
        return call.walk.new_list(iterate(call.walk, given).values, exact=False)  # as many as are asked for
    return given


@api("itertools.chain")
def _chained(call: Call) -> Value:
    found = [iterate(call.walk, value) for value in call.args]
    return call.walk.new_list([v for f in found for v in f.values], all(f.exact for f in found))


@api("builtins.next")
def _next(call: Call) -> Value:
    if not call.args:
        return call.walk.unknown()
    if passes.thrown_away(call.walk, call.node):
        call.walk.emit(BatchesPassedOver, call.node)
    found = iterate(call.walk, call.args[0])
    values = [v for v in found.values if (isinstance(v, Obj) and v.what is not What.OPAQUE) or isinstance(v, Tensors)]
    if values:
        return union([((), v) for v in values])
    made = call.walk.unknown()
    call.walk.answers(made.id, call.args[0], *found.values)
    return made


@api("builtins.filter", "builtins.map")
def _filtered(call: Call) -> Value:
    walk = call.walk
    if len(call.args) < 2:
        return walk.unknown()
    found = [iterate(walk, value) for value in call.args[1:]]
    is_map = call.name == "builtins.map"
    values = []
    for row in zip(*(f.values for f in found), strict=False):
        result = call_value(walk, call.args[0], Call(walk, call.node, list(row), {}))
        values.append(result if is_map else row[0])
    return walk.new_list(values, all(f.exact for f in found) and is_map)


@api("builtins.dict", "collections.OrderedDict", "collections.defaultdict")
def _dict(call: Call) -> Value:
    walk = call.walk
    items: dict[Value, Value] = {}
    exact = not call.open
    for value in call.args:
        read(walk, value, None, call.node)
        content = _content_of_all(walk, value)
        pairs = walk.elements(value) if isinstance(value, Obj) else None
        if content is not None:
            items.update(content.items)
            exact = exact and content.exact
        elif pairs is not None:
            items.update((p.items[0], p.items[1]) for p in pairs.items if isinstance(p, Tuple) and len(p.items) == 2)
            exact = exact and pairs.exact
        elif not isinstance(value, External | Class | Function):
            exact = False
    items.update((Const(name), value) for name, value in call.kwargs.items())
    made = walk.new_dict(items.items(), exact)
    for keyword in call.node.keywords if isinstance(call.node, ast.Call) else ():
        put(walk, made, keyword.arg, keyword.value)
    return made


def _content_of_all(walk: Walk, value: Value) -> Items | None:
    """What is in a dictionary, or in the several that a value may be; None where that is not known of each."""
    contents: list[tuple[Path, Value]] = []
    for path, v in members(value):
        content = walk.items(v) if isinstance(v, Obj) else None
        if content is None:
            return None
        contents.append((path, content))
    merged = union(contents)
    return merged if isinstance(merged, Items) else None


# What tells how far a run is, rather than how it is to be made; `steps` and `epochs` are settings.
_COUNTS = re.compile(r"(step|epoch|iter|iteration|batch|offset|position|cursor|progress)$|seen|consumed|done|rng|state")


@api("dataclasses.asdict")
def _as_dict(call: Call) -> Value:
    """What a dataclass holds: settings, where each field is of a plain type and none tells how far the run is."""
    made = call.walk.unknown(External(call.name))
    value = call.args[0] if call.args else NONE
    if isinstance(value, Obj) and isinstance(value.cls, Class) and value.cls.dataclass and not value.cls.bases:
        fields = [node for node in value.cls.node.body if isinstance(node, ast.AnnAssign)]
        if fields and all(_is_setting(node) for node in fields):
            call.walk.establish(made, "settings")
    return made


def _is_setting(field: ast.AnnAssign) -> bool:
    plain = isinstance(field.annotation, ast.Name) and field.annotation.id in ("int", "float", "bool", "str")
    return plain and isinstance(field.target, ast.Name) and _COUNTS.search(field.target.id) is None


@api("json.dumps")
def _as_text(call: Call) -> Value:
    made = call_library(call, call.name)
    if call.args and isinstance(call.args[0], Obj) and call.walk.fact(call.args[0], "settings"):
        assert isinstance(made, Obj)
        call.walk.establish(made, "settings")
    return made


@api("builtins.getattr")
def _getattr(call: Call) -> Value:
    name = call.constant(1, "name")
    value = call.args[0] if call.args else NONE
    if not isinstance(name, str):
        return call.walk.unknown()
    found = attribute(call.walk, value, name, call.node)
    default = call.get(2, "default")
    unknown = isinstance(found, Obj) and found.what is What.OPAQUE
    return union([((), found), ((), default)]) if default is not None and unknown else found


@api("builtins.setattr")
def _setattr(call: Call) -> Value:
    name = call.constant(1, "name")
    if len(call.args) == 3 and isinstance(name, str):
        set_attribute(call.walk, call.args[0], name, call.args[2], call.node)
    elif call.args and isinstance(call.args[0], Obj):
        call.walk.establish(call.args[0], "open")
        contents.fill(call.walk, call.args[0])
        for _, v in members(call.args[-1]):
            if isinstance(v, Obj):
                call.walk.hold(call.args[0], v)
    return NONE


@api("builtins.hasattr", "builtins.callable", "builtins.isinstance", "builtins.issubclass")
def _asked(call: Call) -> Value:
    if call.args and isinstance(call.args[0], Part) and call.name == "builtins.hasattr":
        return Const(call.args[0].pending)  # a DTensor, which is what it is asked for
    if call.name == "builtins.hasattr" and (has := _has_initialiser(call)) is not None:
        return Const(has)
    if call.name == "builtins.hasattr" and (_is_dtensor(call) or _is_set(call)):
        return Const(True)
    return call.walk.sym("asked", ast.unparse(call.node.func) if isinstance(call.node, ast.Call) else "", *call.args)


def _is_set(call: Call) -> bool:
    """Whether an object of the program's own has been seen to get an attribute of that name."""
    value, name = call.get(0, "obj"), call.constant(1, "name")
    if not (isinstance(value, Obj) and isinstance(value.cls, Class)):
        return False
    return call.walk.store.get((value.id, f".{name}")) is not None


def _is_dtensor(call: Call) -> bool:
    """Whether sharded tensors are asked for what only a DTensor has."""
    value = call.get(0, "obj")
    return isinstance(value, Tensors) and value.form is Form.SHARDED and call.constant(1, "name") in OF_DTENSORS


def _has_initialiser(call: Call) -> bool | None:
    """Whether a module has a method to set its own parameters, None where unknown."""
    module, name = call.get(0, "obj"), call.constant(1, "name")
    if not isinstance(module, Obj) or call.walk.what(module) is not What.MODULE or name != "reset_parameters":
        return None
    if isinstance(module.cls, External) and module.cls.name.startswith("torch.nn."):
        short = module.cls.name.rpartition(".")[2]
        if module.cls.name in CONTAINERS or short in WITHOUT_PARAMETERS:
            return False
        return True if short in WITH_PARAMETERS and short != "MultiheadAttention" else None
    if isinstance(module.cls, Class) and find_method(call.walk, module, name) is not None:
        return True
    if isinstance(module.cls, Class) and lineage(module.cls)[1]:
        plain = [base for base in lineage(module.cls)[0] if isinstance(base, External)]
        return False if all(base.name == "torch.nn.Module" for base in plain) else None
    return None


@api("builtins.vars", "builtins.object", "builtins.super")
def _object(call: Call) -> Value:
    return call.walk.unknown()


@api("functools.partial", "functools.partialmethod")
def _partial(call: Call) -> Value:
    if not call.args:
        return call.walk.unknown()
    return Partial(call.args[0], tuple(call.args[1:]), tuple(call.kwargs.items()))


@api(
    "functools.wraps",
    "functools.lru_cache",
    "functools.cache",
    "torch.no_grad",
    "torch.inference_mode",
    "torch.enable_grad",
)
def _transparent(call: Call) -> Value:
    value = call.args[-1] if call.args else None
    if isinstance(value, Function | Bound) and isinstance(call.node, ast.Call) and not _named(call, "wraps"):
        return value
    return External("builtins.staticmethod_like")


def _named(call: Call, name: str) -> bool:
    return isinstance(call.node, ast.Call) and ast.unparse(call.node.func).endswith(name)


@anything("parse_args", "parse_known_args")
def _arguments(call: Call, receiver: Value) -> Value | None:
    """The arguments of a command line: each keeps its (unknown) value."""
    walk = call.walk
    if not isinstance(receiver, Obj) or receiver.what is not What.OPAQUE:
        return None
    known = walk.get((receiver.id, "%arguments"))
    if known is None:
        known = walk.unknown(External("argparse.Namespace"))
        walk.store.set((receiver.id, "%arguments"), known)
    return Tuple((known, walk.unknown())) if _named(call, "parse_known_args") else known


# --- lists and dictionaries ---


@method(What.LIST, "append", "add", "appendleft", "put")
def _append(call: Call, target: Obj) -> Value:
    content = call.walk.elements(target)
    kept_in_list(call.walk, call.args)
    if content is not None and call.args:
        items = (*content.items, call.args[0])[-_LIMIT:]
        call.walk.store.set((target.id, "%items"), Elements(items, content.exact))
        if (about := call.walk.frame.going_through) is not None:
            call.walk.asked[target.id] = about
    return NONE


@method(What.LIST, "extend", "update")
def _extend(call: Call, target: Obj) -> Value:
    for value in call.args:
        extend(call.walk, target, iterate(call.walk, value))
    return NONE


@method(What.LIST, "insert")
def _insert(call: Call, target: Obj) -> Value:
    content = call.walk.elements(target)
    if content is not None and len(call.args) == 2:
        call.walk.store.set((target.id, "%items"), Elements((call.args[1], *content.items)[:_LIMIT], exact=False))
    return NONE


@method(What.LIST, "clear")
def _clear(call: Call, target: Obj) -> Value:
    call.walk.store.set((target.id, "%items"), Elements((), exact=True))
    return NONE


@method(What.LIST, "pop", "popleft", "get", "get_nowait")
def _pop(call: Call, target: Obj) -> Value:
    content = call.walk.elements(target)
    if content is None or not content.items:
        return call.walk.unknown()
    if not content.exact:
        return union([((), v) for v in content.items])
    first = call.constant(0, "index") == 0 or _named(call, "popleft") or _named(call, "get")
    taken = content.items[0] if first else content.items[-1]
    left = content.items[1:] if first else content.items[:-1]
    call.walk.store.set((target.id, "%items"), Elements(left, exact=True))
    return taken


@method(What.LIST, "remove", "discard", "sort", "reverse", "copy", "index", "count", "__len__")
def _list_other(call: Call, target: Obj) -> Value:
    content = call.walk.elements(target)
    if _named(call, "copy") and content is not None:
        return call.walk.new_list(content.items, content.exact)
    if content is not None and (_named(call, "remove") or _named(call, "discard")):
        call.walk.store.set((target.id, "%items"), Elements(content.items, exact=False))
    return call.walk.sym()


@method(What.DICT, "get", "pop", "setdefault")
def _dict_get(call: Call, target: Obj) -> Value:
    from ..walk.expressions import item

    content = call.walk.items(target)
    key = call.args[0] if call.args else NONE
    read(call.walk, target, key, call.node)
    default = call.args[1] if len(call.args) > 1 else NONE
    keys = [k for k, _ in content.items] if content is not None else []
    if content is not None and content.exact and (key in keys or all(isinstance(k, Const) for k in (key, *keys))):
        found = dict(content.items).get(key)
        if _named(call, "pop") and found is not None:
            left = tuple((k, v) for k, v in content.items if k != key)
            call.walk.store.set((target.id, "%items"), Items(left, content.exact))
        if _named(call, "setdefault") and found is None:
            call.walk.store.set((target.id, "%items"), Items((*content.items, (key, default)), content.exact))
        return found if found is not None else default
    value = union([((), item(call.walk, target, key, call.node)), ((), default)])
    if content is not None and not _named(call, "get"):  # which one it is, or whether it is there, is not known
        added = ((key, default),) if _named(call, "setdefault") else ()
        call.walk.store.set((target.id, "%items"), Items((*content.items, *added), exact=False))
    return value


@method(What.DICT, "popitem")
def _dict_popitem(call: Call, target: Obj) -> Value:
    if (content := call.walk.items(target)) is not None:
        call.walk.store.set((target.id, "%items"), Items(content.items, exact=False))
    return call.walk.unknown()


@method(What.DICT, "clear")
def _dict_clear(call: Call, target: Obj) -> Value:
    call.walk.store.set((target.id, "%items"), Items((), exact=True))
    return NONE


@method(What.DICT, "update")
def _dict_update(call: Call, target: Obj) -> Value:
    walk = call.walk
    content = walk.items(target)
    if content is None:
        return NONE
    items = dict(content.items)
    exact = content.exact and not call.open
    for value in call.args:
        more = walk.items(value) if isinstance(value, Obj) else None
        if more is not None:
            items.update(more.items)
        elif isinstance(value, Obj) and value.what is What.STATE:
            items[walk.sym()] = value
            continue
        exact = exact and more is not None and more.exact
    items.update((Const(name), value) for name, value in call.kwargs.items())
    walk.store.set((target.id, "%items"), Items(tuple(items.items()), exact))
    return NONE


@method(What.DICT, "values")
def _dict_values(call: Call, target: Obj) -> Value:
    read(call.walk, target, None, call.node)
    content = call.walk.items(target)
    return call.walk.new_list(parts(call.walk, target), content is not None and content.exact)


@method(What.DICT, "keys")
def _dict_keys(call: Call, target: Obj) -> Value:
    content = call.walk.items(target)
    return call.walk.new_list([k for k, _ in content.items] if content else [], content is not None and content.exact)


@method(What.DICT, "items")
def _dict_items(call: Call, target: Obj) -> Value:
    read(call.walk, target, None, call.node)
    content = call.walk.items(target)
    pairs = [Tuple(pair) for pair in content.items] if content else []
    return call.walk.new_list(pairs, content is not None and content.exact)


@method(What.DICT, "copy")
def _dict_copy(call: Call, target: Obj) -> Value:
    read(call.walk, target, None, call.node)
    content = call.walk.items(target)
    return call.walk.new_dict(content.items, content.exact) if content is not None else call.walk.unknown()


# --- state dicts, which are dictionaries of tensors ---


@method(What.STATE, "items")
def _state_items(call: Call, state: Obj) -> Value:
    key = call.walk.sym()
    prefixes.name_keys(call.walk, key, state)
    return call.walk.new_list([Tuple((key, _tensors(state)))], exact=False)


@method(What.STATE, "values", "get", "pop")
def _state_values(_call: Call, state: Obj) -> Value:
    return _tensors(state)


@method(What.STATE, "keys", "__len__")
def _state_keys(call: Call, _state: Obj) -> Value:
    return call.walk.new_list([call.walk.sym()], exact=False)


@method(What.STATE, "copy")
def _state_copy(_call: Call, state: Obj) -> Value:
    return state


@method(What.STATE, "update")
def _state_update(_call: Call, _state: Obj) -> Value:
    return NONE


def _tensors(state: Obj) -> Value:
    from ..values import StateData

    data = state.data
    assert isinstance(data, StateData)
    return Tensors(data.of, data.kind, data.form, data.via)


@api("importlib.import_module")
def _import_module(call: Call) -> Value:
    from ..walk.imports import module

    name = call.constant(0, "name")
    return module(call.walk, name, call.node) if isinstance(name, str) and name[:1] != "." else call.walk.unknown()


@api("os.path.join")
def _joined(call: Call) -> Value:
    texts = [single(v) for v in call.args]
    if texts and all(isinstance(t, str) for t in texts):
        return Const("/".join(str(t) for t in texts))
    return call.walk.sym("join", *call.args, rank=any(isinstance(v, Sym) and v.rank for v in call.args))


@api("typing.cast")
def _cast(call: Call) -> Value:
    return call.args[1] if len(call.args) > 1 else call_library(call, "typing.cast")
