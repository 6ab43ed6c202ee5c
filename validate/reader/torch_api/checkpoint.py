"""Distributed Checkpoint and `torch.save`."""

from __future__ import annotations

import ast
import dataclasses
import functools
import re
from collections.abc import Sequence
from typing import Any

from ...events import (
    Entry,
    Form,
    Kind,
    Loaded,
    Saved,
    TorchLoaded,
    TorchSaved,
    Via,
)
from ..nodes import nodes
from ..values import (
    NONE,
    Const,
    Elements,
    External,
    Items,
    Obj,
    RngState,
    StateData,
    Sym,
    Tensors,
    Tuple,
    Value,
    What,
    members,
    ranked,
    single,
)
from ..walk import contents, prefixes
from ..walk.calls import Call, call_value, find_method
from ..walk.conditions import holds_once
from ..walk.core import Walk
from ..walk.division import within_machine
from ..walk.filled import load
from ..walk.folders import knows_content, knows_whole, listed, pieces, root
from ..walk.handlers import caught
from ..walk.loops import left_after
from .launch import group_of
from .members import misses
from .optimizers import optimizer_form
from .pickles import foreign
from .places import place_of
from .table import api

DCP = "torch.distributed.checkpoint."
_DEPTH_LIMIT = 4  # dictionaries within dictionaries
_NUMBERS = ("math.inf", "math.nan", "math.pi", "math.e", "torch.inf", "torch.nan", "numpy.inf", "numpy.nan")


# --- what is saved ---


def entries(call: Call, value: Value | None, by_rank: bool = False) -> tuple[Entry, ...] | None:
    """The entries of the dictionary given to a save or load; None where it cannot be seen into.

    Objects of the program that have a `state_dict` method are asked for their state, as DCP does. `by_rank`: each rank
    has a place of its own for them.
    """
    if value is None:
        return None
    found: list[Entry] = []
    for _, v in members(value):
        if isinstance(v, Obj) and v.what is What.DICT and (content := call.walk.items(v)) is not None:
            if not content.exact and not content.items:
                return None
            for key, inner in content.items:
                found += _under(call, key, _key_text(key), inner, by_rank, 0)
            found += _unseen("", content.exact)
        elif isinstance(v, Obj) and (isinstance(v.data, StateData) or _is_stateful(call.walk, v)):
            found += _entries(call, "", v, by_rank, 0)
        else:
            return None
    return tuple(_merged(found))


def _unseen(key: str, exact: bool) -> list[Entry]:
    """What else may be in a dictionary or list."""
    return [] if exact else [Entry(key=f"{key}.*" if key else "*", kind=Kind.UNKNOWN)]


def _merged(found: list[Entry]) -> list[Entry]:
    """One entry a key, kind and object."""
    return list({(e.key, e.kind, e.of.id if e.of else None, e.via): e for e in found}.values())


def _key_text(key: Value) -> str:
    constant = single(key)
    return str(constant) if isinstance(key, Const) else "*" if constant is None else str(constant)


def _has_rank(key: Value) -> bool:
    return isinstance(key, Sym) and key.rank


def _under(call: Call, key: Value, path: str, value: Value, by_rank: bool, depth: int) -> list[Entry]:
    """The entries of what stands under a key, which may name the rank, or that within its machine alone."""
    found = _entries(call, path, value, by_rank or _has_rank(key), depth)
    if by_rank or not _has_rank(key) or not within_machine(call.walk, key):
        return found
    return [dataclasses.replace(e, by_local_rank=True) for e in found]


def _is_stateful(walk: Walk, obj: Obj) -> bool:
    return find_method(walk, obj, "state_dict") is not None


def _entries(call: Call, key: str, value: Value, by_rank: bool, depth: int) -> list[Entry]:
    every = [_entries_of_one(call, key, v, by_rank, depth) for _, v in members(value) if v != NONE or key == ""]
    every = every or [_entries_of_one(call, key, NONE, by_rank, depth)]
    found = [entry for one in every for entry in one]
    agreed = [{e.key for e in one if e.per_rank} for one in every]
    if by_rank:
        found = [dataclasses.replace(e, by_rank=True) for e in found]
    in_all = set.intersection(*agreed)  # what one alternative shows of a key, the others may have put right
    return [e if not e.per_rank or e.key in in_all else dataclasses.replace(e, per_rank=None) for e in found]


def _entries_of_one(call: Call, key: str, value: Value, by_rank: bool, depth: int) -> list[Entry]:
    walk = call.walk
    if isinstance(value, RngState):
        per_rank = None if value.made else not by_rank  # one that the program seeds may be the same on all ranks
        return [Entry(key=key, kind=Kind.RNG, form=Form.PLAIN, per_rank=per_rank)]
    if isinstance(value, Tensors):
        of = walk.ref(value.of[0]) if value.of else None
        per_rank = (not by_rank) if value.form is Form.LOCAL else None
        return [Entry(key=key, kind=value.kind, of=of, form=value.form, via=value.via, per_rank=per_rank)]
    if isinstance(value, Const):
        return [Entry(key=key, kind=Kind.VALUE, form=Form.PLAIN, per_rank=False)]
    if isinstance(value, Sym):
        per_rank = (not by_rank) if value.rank else None
        return [Entry(key=key, kind=Kind.VALUE, form=Form.PLAIN, per_rank=per_rank)]
    if isinstance(value, Tuple):
        return _nested(call, key, [(Const(i), v) for i, v in enumerate(value.items)], by_rank, depth)
    if isinstance(value, External) and value.name in _NUMBERS:
        return [Entry(key=key, kind=Kind.VALUE, form=Form.PLAIN, per_rank=False)]
    if not isinstance(value, Obj):
        return [Entry(key=key, kind=Kind.UNKNOWN)]
    if isinstance(value.data, StateData):
        replaced = walk.fact(value, "replaced")  # some of its values, by what the program made of them
        data = dataclasses.replace(value.data, form=Form.UNKNOWN) if replaced else value.data
        return _of_state(walk, key, data, by_rank)
    content = walk.content(value)
    what = walk.what(value)
    if isinstance(content, Items) and what is What.DICT:
        return _nested(call, key, list(content.items), by_rank, depth) + _unseen(key, content.exact)
    if isinstance(content, Elements) and what is What.LIST:
        items = [(Const(i), v) for i, v in enumerate(content.items)]
        return _nested(call, key, items, by_rank, depth) + _unseen(key, content.exact)
    method = find_method(walk, value, "state_dict")
    if method is not None and what in (What.INSTANCE, What.MODULE, What.OPTIMIZER) and depth < _DEPTH_LIMIT:
        state = state_of(call, value, method)
        return (
            _entries(call, key, state, by_rank, depth + 1) if what is What.INSTANCE else _raw(walk, key, value, by_rank)
        )
    return _raw(walk, key, value, by_rank)


def _nested(call: Call, key: str, items: Sequence[tuple[Value, Value]], by_rank: bool, depth: int) -> list[Entry]:
    if depth >= _DEPTH_LIMIT:
        return [Entry(key=key, kind=Kind.UNKNOWN)]
    found: list[Entry] = []
    for name, value in items:
        path = f"{key}.{_key_text(name)}" if key else _key_text(name)
        found += _under(call, name, path, value, by_rank, depth + 1)
    return found


def _of_state(walk: Walk, key: str, data: StateData, by_rank: bool) -> list[Entry]:
    by_rank = by_rank or data.by_rank
    per_rank: bool | None = None if data.kind is Kind.UNKNOWN else False
    if data.kind is Kind.LOADER or data.form is Form.LOCAL:
        per_rank = not by_rank
    return [
        Entry(
            key=key,
            kind=data.kind,
            of=walk.ref(obj),
            form=data.form,
            via=data.via,
            aliased=data.aliased,
            per_rank=per_rank,
            prefix=data.prefix,
        )
        for obj in data.of
    ] or [Entry(key=key, kind=data.kind, form=data.form, via=data.via, aliased=data.aliased, per_rank=per_rank)]


_RAW = {
    What.MODULE: Kind.MODEL,
    What.OPTIMIZER: Kind.OPTIMIZER,
    What.SCHEDULER: Kind.SCHEDULER,
    What.LOADER: Kind.LOADER,
}


def _raw(walk: Walk, key: str, obj: Obj, by_rank: bool) -> list[Entry]:
    """An object that DCP asks for its state itself."""
    what = walk.what(obj)
    kind = _RAW.get(what, Kind.UNKNOWN) if what is not None else Kind.UNKNOWN
    made = obj.cls.name if isinstance(obj.cls, External) else ""
    if kind is Kind.UNKNOWN and (made == "torch.empty" or walk.fact(obj, "settings")):
        return [Entry(key=key, kind=Kind.VALUE, form=Form.PLAIN)]
    if kind is Kind.UNKNOWN:
        return [Entry(key=key, kind=kind, of=walk.ref(obj))]
    form = Form.PLAIN
    prefix = None
    if kind is Kind.MODEL:
        form = walk.form_of(obj)
        prefix = prefixes.of_keys(walk, obj)
    elif kind is Kind.OPTIMIZER:
        form = optimizer_form(walk, obj)
    per_rank: bool | None = not by_rank if kind is Kind.LOADER else False
    if per_rank and walk.fact(obj, "counts"):
        per_rank = None  # how many batches were taken, which is the same on all ranks
    of = walk.ref(obj)
    return [Entry(key=key, kind=kind, of=of, form=form, via=Via.OBJECT, per_rank=per_rank, prefix=prefix)]


def state_of(call: Call, obj: Obj, method: Value) -> Value:
    """What `state_dict()` of an object of the program returns, walked at most once for each call of DCP."""
    walk = call.walk
    known = walk.states.get(obj.id)
    if known is None:
        known = call_value(walk, method, Call(walk, call.node, [], {}))
        walk.states[obj.id] = known
    return known


def _statefuls(walk: Walk, value: Value, depth: int = 0) -> list[Obj]:
    """The objects of the program in a dictionary that DCP asks for their state."""
    found: list[Obj] = []
    for _, v in members(value):
        if not isinstance(v, Obj) or depth > _DEPTH_LIMIT:
            continue
        content = walk.content(v)
        if isinstance(content, Items):
            found += [s for _, inner in content.items for s in _statefuls(walk, inner, depth + 1)]
        elif v.what is What.INSTANCE and _is_stateful(walk, v):
            found.append(v)
    return found


# --- saves and loads ---


def common(call: Call, value: Value | None) -> dict[str, Any]:
    """What the event of a save or load of this dictionary tells beside its own."""
    walk = call.walk
    walk.states = {}
    given = _where(call)
    target = single(given)
    replaces = _replaces(walk.frames[0].file.tree)
    return {
        "target": target if isinstance(target, str) else None,
        "pieces": pieces(walk, given),
        "place": place_of(walk, given),
        "located": _is_located(call) or replaces,
        "entries": None if replaces else entries(call, value, ranked(given)),
        "group": group_of(call, call.get(None, "process_group")),
        "alone": call.constant(None, "no_dist") is True,
        "series": root(walk, given),
        "caught": caught(walk, call.node),
    }


@functools.lru_cache(maxsize=64)
def _replaces(tree: ast.Module) -> bool:
    """Whether a program may put something else in the place of what it calls, as tests do."""
    for node in ast.walk(tree):
        if isinstance(node, ast.arg) and node.arg in ("monkeypatch", "mocker"):
            return True
        if isinstance(node, ast.Import | ast.ImportFrom):
            module = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
            if any(f"{module}{alias.name}.".startswith("unittest.mock.") for alias in node.names):
                return True
    return False


def of_save(call: Call) -> dict[str, Any]:
    """What the event of a save tells beside its own."""
    fields = common(call, call.get(0, "state_dict"))
    group = call.get(None, "process_group")
    missed = misses(call.walk, group, fields["entries"], ranked(_where(call)))
    once = holds_once(call.walk) or left_after(call.walk, call.node)
    return {**fields, "underway": tuple(call.walk.underway), "misses": missed, "once": once}


def _where(call: Call) -> Value | None:
    """The directory of the checkpoint: as given, or as its storage was given it."""
    given = call.get(None, "checkpoint_id")
    storage = call.get(None, "storage_writer") or call.get(None, "storage_reader")
    if given in (None, NONE) and isinstance(storage, Obj):
        return call.walk.attribute(storage, "path")
    return given


def _is_located(call: Call) -> bool:
    """Whether the call says, or may say, where the checkpoint is."""
    names = ("checkpoint_id", "storage_writer", "storage_reader")
    given = [call.kwargs[name] for name in names if name in call.kwargs] + call.args[1:]
    return call.open or any(value != NONE for value in given)


@api(
    DCP + "FileSystemWriter",
    DCP + "FileSystemReader",
    DCP + "filesystem.FileSystemWriter",
    DCP + "filesystem.FileSystemReader",
)
def _storage(call: Call) -> Value:
    made = call.walk.unknown(External(call.name))
    path = call.get(0, "path")
    if path is not None and call.constant(None, "overwrite") is not False:
        call.walk.store.set((made.id, ".path"), path)
    return made


# How programs call the save that is not to be written in the background, as nothing comes after it.
_LAST = re.compile(r"last|final|force|(^|_)(end|done)|== [\w.]*(steps|iters)\b", re.IGNORECASE)


@api(DCP + "save", DCP + "save_state_dict")
def _save(call: Call) -> Value:
    walk = call.walk
    final = any(_LAST.search(ast.unparse(test)) for test, _ in walk.tests_on_the_way())
    walk.emit(Saved, call.node, **of_save(call), final=final)
    return call.walk.unknown()


def _takes_all(call: Call) -> bool:
    """Whether it is called for one after the other of several, none of which is left out."""
    function = call.walk.frame.function
    within = nodes(function.node) if function is not None else []
    loops = [loop for loop in within if isinstance(loop, ast.For) and call.node in nodes(loop)]
    return any(not any(isinstance(part, ast.Break | ast.Return) for part in nodes(loop)) for loop in loops)


@api(DCP + "load", DCP + "load_state_dict")
def _load(call: Call) -> Value:
    walk = call.walk
    given = call.get(0, "state_dict")
    fields = common(call, given)
    state = next((walk.ref(v) for _, v in members(given) if isinstance(v, Obj)), None) if given is not None else None
    blindly = listed(walk, _where(call)) and not knows_whole(walk) and not _takes_all(call)
    whole = False if blindly else None
    looked = knows_content(walk)
    walk.emit(
        Loaded,
        call.node,
        state=state,
        partial=_is_partial(call),
        looked_into=looked,
        pretrained=_is_pretrained(call),
        whole=whole,
        **fields,
    )
    for obj in _statefuls(walk, given) if given is not None else ():
        method = find_method(walk, obj, "load_state_dict")
        if method is not None:
            known = walk.states.get(obj.id)
            call_value(walk, method, Call(walk, call.node, [known if known is not None else walk.unknown()], {}))
    if given is not None:
        _filled(walk, given)
        contents.fill(walk, given, "loaded")
    return NONE


@api(DCP + "DefaultLoadPlanner", DCP + "default_planner.DefaultLoadPlanner")
def _load_planner(call: Call) -> Value:
    planner = call.walk.unknown(External(DCP + "DefaultLoadPlanner"))
    given = call.get(2, "allow_partial_load")
    allowed = Const(False) if given is None and not call.open else given or call.walk.sym()
    call.walk.store.set((planner.id, ".allow_partial_load"), allowed)
    return planner


def _is_pretrained(call: Call) -> bool:
    """Whether the storage is one for files of Hugging Face's."""
    reader = call.get(None, "storage_reader")
    return (
        isinstance(reader, Obj)
        and isinstance(reader.cls, External)
        and reader.cls.name.endswith("HuggingFaceStorageReader")
    )


def _is_partial(call: Call) -> bool | None:
    planner = call.get(None, "planner")
    if planner is None or planner == NONE:
        return None if call.open else False
    if not isinstance(planner, Obj) or planner.cls != External(DCP + "DefaultLoadPlanner"):
        return None
    allowed = call.walk.attribute(planner, "allow_partial_load")
    return bool(allowed.value) if isinstance(allowed, Const) else None


def _filled(walk: Walk, value: Value) -> None:
    """What a load put into the dictionary is not the constants that were in it."""
    for _, v in members(value):
        content = walk.items(v) if isinstance(v, Obj) else None
        if content is None or not isinstance(v, Obj):
            continue
        for key, inner in content.items:
            load(walk, v, key, inner)
        fresh = tuple((k, walk.sym() if isinstance(inner, Const | Sym) else inner) for k, inner in content.items)
        walk.store.set((v.id, "%items"), Items(fresh, content.exact))
        for _, inner in fresh:
            _filled(walk, inner)


# --- torch.save ---


@api("torch.save")
def _torch_save(call: Call) -> Value:
    walk = call.walk
    walk.states = {}
    value = call.get(0, "obj")
    target = call.constant(1, "f")
    saved = entries(call, value) if value is not None else None
    if saved is None and value is not None and all(_is_model(walk, v) for _, v in members(value)):
        saved = tuple(e for _, v in members(value) for e in _entries_of_one(call, "", v, False, 0))
    if saved is None and isinstance(value, Tensors):
        saved = tuple(_entries_of_one(call, "", value, False, 0))
    by_rank = _is_of_rank(walk, call.get(1, "f"))
    target = target if isinstance(target, str) else None
    walk.emit(TorchSaved, call.node, target=target, entries=saved, by_rank=by_rank)
    return NONE


def _is_of_rank(walk: Walk, file: Value | None) -> bool:
    """Whether each rank writes to another place, or into its own memory, from where it may go to one."""
    if isinstance(file, Obj) and (walk.fact(file, "of rank") or file.cls == External("io.BytesIO")):
        return True
    return ranked(file)


def _is_model(walk: Walk, value: Value) -> bool:
    return isinstance(value, Obj) and walk.what(value) in (What.MODULE, What.OPTIMIZER)


@api("torch.load")
def _torch_load(call: Call) -> Value:
    target, weights_only = call.constant(0, "f"), call.constant(None, "weights_only")
    call.walk.emit(
        TorchLoaded,
        call.node,
        target=target if isinstance(target, str) else None,
        weights_only=weights_only if isinstance(weights_only, bool) else None,
        foreign=foreign(call) if weights_only is False else None,
    )
    return _read_file(call, call.get(0, "f"))


@api("safetensors.torch.load_file")
def _load_safetensors(call: Call) -> Value:
    return _read_file(call, call.get(0, "filename"))


def _read_file(call: Call, path: Value | None) -> Value:
    walk = call.walk
    content = walk.unknown(External(call.name))
    if path is None or ranked(path) or (isinstance(path, Obj) and walk.fact(path, "of rank")):
        walk.establish(content, "of rank")
    return content
