"""Asynchronous saves: their stagers, and the futures that tell when they are done."""

from __future__ import annotations

from ...events import AsyncSaved, Awaited, StagerBuilt
from ..values import NONE, Const, External, Obj, Value, What, members
from ..walk.calls import Call, callbacks
from ..walk.core import Walk
from ..walk.escapes import escape
from ..walk.lookup import ATTRIBUTES
from ..walk.loops import iterate
from .checkpoint import DCP, of_save
from .table import anything, api, method

_DEFAULT_STAGER = DCP + "staging.DefaultStager"
_BLOCKING_STAGER = DCP + "staging.BlockingAsyncStager"


# --- stagers ---


@api(DCP + "staging.StagingOptions")
def _staging_options(call: Call) -> Value:
    options = call.walk.unknown(External(call.name))
    given = call.get(2, "use_async_staging")
    call.walk.store.set((options.id, ".use_async_staging"), given or (call.walk.sym() if call.open else Const(True)))
    return options


@api(_DEFAULT_STAGER)
def _default_stager(call: Call) -> Value:
    stager = call.walk.unknown(External(call.name))
    given = call.get(0, "config")
    if given is not None or call.open:
        call.walk.store.set((stager.id, ".config"), given or call.walk.unknown())
    call.walk.emit(StagerBuilt, call.node, stager=call.walk.ref(stager))
    return stager


@api(_BLOCKING_STAGER)
def _blocking_stager(call: Call) -> Value:
    return call.walk.unknown(External(call.name))


def _in_background(walk: Walk, stager: Value | None) -> bool | None:
    """Whether a stager copies the state while the program goes on."""
    if stager is None or stager == NONE:
        return False
    cls = stager.cls if isinstance(stager, Obj) else None
    if not isinstance(stager, Obj) or cls != External(_DEFAULT_STAGER):
        return False if cls == External(_BLOCKING_STAGER) else None
    config = walk.attribute(stager, "config")
    if config is None:
        return True
    asked = walk.attribute(config, "use_async_staging") if isinstance(config, Obj) else None
    return bool(asked.value) if isinstance(asked, Const) else None


@anything("synchronize_staging")
def _synchronized(call: Call, stager: Value) -> Value | None:
    staging = call.walk.store.get((stager.id, "%staging")) if isinstance(stager, Obj) else None
    for _, future in members(staging) if staging is not None else ():
        if isinstance(future, Obj):
            _awaited(call, future)
    return None if staging is None else NONE


# --- saves ---


@api(DCP + "async_save")
def _async_save(call: Call) -> Value:
    walk = call.walk
    fields = of_save(call)
    stager = call.get(None, "async_stager")
    in_background = None if call.open and stager is None else _in_background(walk, stager)
    future, staging = walk.new(What.FUTURE), walk.new(What.FUTURE)
    walk.emit(
        AsyncSaved,
        call.node,
        future=walk.ref(future),
        staging=walk.ref(staging) if in_background else None,
        stager=walk.ref(stager) if isinstance(stager, Obj) else None,
        process=_by_process(call),
        imported=_imported(walk),
        **fields,
    )
    walk.store.set((future.id, "%staging"), staging)
    if in_background is False or stager is None:
        return future
    if isinstance(stager, Obj):
        walk.store.set((stager.id, "%staging"), staging)
    response = walk.new(What.RESPONSE)  # torch returns two futures in one object
    walk.store.set((response.id, "%upload"), future)
    walk.store.set((response.id, "%staging"), staging)
    return response


def _by_process(call: Call) -> bool | None:
    kind = call.get(None, "async_checkpointer_type")
    if kind is None:
        return None if call.open else False
    return kind.name.endswith(".PROCESS") if isinstance(kind, External) else None


def _imported(walk: Walk) -> bool | None:
    """Whether importing the program's main module leads here; a package's `__main__` is never imported anew."""
    if not walk.in_entry or walk.frames[0].file.path.name == "__main__.py":
        return None
    return not walk.guarded


def _part(walk: Walk, obj: Obj, name: str) -> Obj:
    future = walk.store.get((obj.id, name))
    assert isinstance(future, Obj)
    return future


ATTRIBUTES[(What.RESPONSE, "upload_completion")] = lambda walk, response, _node: _part(walk, response, "%upload")
ATTRIBUTES[(What.FUTURE, "upload_completion")] = lambda _walk, future, _node: future
ATTRIBUTES[(What.RESPONSE, "staging_completion")] = lambda walk, response, _node: _part(walk, response, "%staging")
ATTRIBUTES[(What.FUTURE, "staging_completion")] = lambda walk, future, _node: _part(walk, future, "%staging")


# --- futures ---


def _awaited(call: Call, future: Obj) -> None:
    call.walk.emit(Awaited, call.node, future=call.walk.ref(future))


@method(What.FUTURE, "result", "exception", "wait")
def _result(call: Call, future: Obj) -> Value:
    _awaited(call, future)
    return call.walk.unknown()


@method(What.FUTURE, "done", "running")
def _done(call: Call, future: Obj) -> Value:
    _awaited(call, future)
    return call.walk.sym()


@method(What.FUTURE, "add_done_callback")
def _callback(call: Call, future: Obj) -> Value:
    callbacks(call, call.everything())
    escape(call, [future])
    return NONE


@method(What.FUTURE, "cancel")
def _cancel(call: Call, _future: Obj) -> Value:
    return call.walk.sym()


@method(What.RESPONSE, "result", "wait")
def _response_result(call: Call, response: Obj) -> Value:
    _awaited(call, _part(call.walk, response, "%upload"))
    return call.walk.unknown()


@api(
    "concurrent.futures.wait",
    "concurrent.futures.as_completed",
    "asyncio.gather",
    "asyncio.wrap_future",
    "asyncio.wait",
    "torch.futures.wait_all",
)
def _wait(call: Call) -> Value:
    walk = call.walk
    found: list[Value] = []
    for value in call.args:
        for _, v in members(value):
            found += iterate(walk, v).values if not (isinstance(v, Obj) and v.what is What.FUTURE) else [v]
    futures = [v for value in found for _, v in members(value) if isinstance(v, Obj) and v.what is What.FUTURE]
    for future in futures:
        _awaited(call, future)
    return walk.new_list(futures, exact=False)
