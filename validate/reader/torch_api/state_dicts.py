"""The helpers of `torch.distributed.checkpoint.state_dict`."""

from __future__ import annotations

from ...events import Form, Kind, StateApplied, StateTaken, Via
from ..values import NONE, Const, External, Obj, OptionsData, StateData, Tuple, Value, What, members
from ..walk import contents, prefixes
from ..walk.calls import Call
from ..walk.core import Walk
from .applied import flag, of_given
from .modules import as_modules
from .optimizers import as_optimizers
from .table import api

_PREFIX = "torch.distributed.checkpoint.state_dict."


@api(_PREFIX + "StateDictOptions")
def _options(call: Call) -> Value:
    data = OptionsData(
        flag(call, 0, "full_state_dict", False),
        flag(call, 1, "cpu_offload", False),
        flag(call, 5, "broadcast_from_rank0", False),
        flag(call, 4, "strict", True),
    )
    return call.walk.new(What.OPTIONS, External(_PREFIX + "StateDictOptions"), data=data)


def _options_of(walk: Walk, value: Value | None) -> OptionsData:
    """The options in force; None for those that depend on a branch."""
    if value is None or value == NONE:
        return OptionsData()
    found = []
    for _, v in members(value):
        if v == NONE:
            found.append(OptionsData())
            continue
        if not (isinstance(v, Obj) and isinstance(v.data, OptionsData)):
            return OptionsData(None, None, None, None)
        found.append(
            OptionsData(
                _in_force(walk, v, "full_state_dict", v.data.full),
                _in_force(walk, v, "cpu_offload", v.data.offload),
                _in_force(walk, v, "broadcast_from_rank0", v.data.broadcast),
                _in_force(walk, v, "strict", v.data.strict),
            )
        )
    return OptionsData(
        _agreed([o.full for o in found]),
        _agreed([o.offload for o in found]),
        _agreed([o.broadcast for o in found]),
        _agreed([o.strict for o in found]),
    )


def _agreed(flags: list[bool | None]) -> bool | None:
    return flags[0] if len(set(flags)) == 1 else None


def _in_force(walk: Walk, options: Obj, name: str, built: bool | None) -> bool | None:
    """The option as constructed, or as assigned later."""
    value = walk.attribute(options, name)
    if value is None:
        return built
    return bool(value.value) if isinstance(value, Const) else None


def _take(call: Call, modules: list[Obj], of: list[Obj], kind: Kind, options: OptionsData) -> Obj:
    """The state dict of `of`, an object of a training run whose model is `modules`."""
    walk = call.walk
    for obj in of:
        contents.fill(walk, obj, "loaded")  # the program may write into the tensors of its state
    forms = {walk.form_of(module) for module in modules}
    form = Form.FULL if options.full else Form.UNKNOWN if options.full is None or len(forms) != 1 else forms.pop()
    aliased = (
        False
        if options.full or options.offload
        else True
        if form is Form.SHARDED and options.offload is False
        else None
    )
    found = (prefixes.of_keys(walk, module, by_helper=True) for module in modules)
    prefix = next((p for p in found if p is not None), None)
    data = StateData(tuple(of), kind, form, Via.HELPER, options.full, options.offload, aliased, prefix=prefix)
    return walk.new(What.STATE, data=data)


def _emit_taken(call: Call, of: list[Obj], state: Obj, options: OptionsData) -> None:
    walk = call.walk
    walk.emit(
        StateTaken,
        call.node,
        of=tuple(map(walk.ref, of)),
        state=walk.ref(state),
        via=Via.HELPER,
        full=options.full,
        offload=options.offload,
        unsharded=all(_is_just_made(walk, obj) for obj in of),
    )


def _is_just_made(walk: Walk, obj: Obj) -> bool:
    """Whether a library made the object on the meta device, and nothing that may have sharded it was given it since."""
    return walk.fact(obj, "made empty") and not walk.has_escaped(obj) and not walk.is_sharded(obj)


@api(_PREFIX + "get_model_state_dict")
def _get_model(call: Call) -> Value:
    options = _options_of(call.walk, call.get(None, "options"))
    modules = as_modules(call.walk, call.get(0, "model"))
    state = _take(call, modules, modules, Kind.MODEL, options)
    _emit_taken(call, modules, state, options)
    return state


@api(_PREFIX + "get_optimizer_state_dict")
def _get_optimizer(call: Call) -> Value:
    options = _options_of(call.walk, call.get(None, "options"))
    modules = as_modules(call.walk, call.get(0, "model"))
    optimizers = as_optimizers(call.walk, call.get(1, "optimizers"))
    state = _take(call, modules, optimizers, Kind.OPTIMIZER, options)
    _emit_taken(call, optimizers, state, options)
    return state


@api(_PREFIX + "get_state_dict")
def _get_both(call: Call) -> Value:
    options = _options_of(call.walk, call.get(None, "options"))
    modules = as_modules(call.walk, call.get(0, "model"))
    optimizers = as_optimizers(call.walk, call.get(1, "optimizers"))
    model_state = _take(call, modules, modules, Kind.MODEL, options)
    optimizer_state = _take(call, modules, optimizers, Kind.OPTIMIZER, options)
    _emit_taken(call, modules, model_state, options)
    if optimizers:
        _emit_taken(call, optimizers, optimizer_state, options)
    return Tuple((model_state, optimizer_state))


def _apply(call: Call, to: list[Obj], state: Value | None, options: OptionsData) -> None:
    walk = call.walk
    for obj in to:
        contents.fill(walk, obj, "loaded")
    given = [v for _, v in members(state) if isinstance(v, Obj)] if state is not None else []
    walk.emit(
        StateApplied,
        call.node,
        to=tuple(map(walk.ref, to)),
        state=walk.ref(given[0]) if given else None,
        via=Via.HELPER,
        full=options.full,
        broadcast=options.broadcast,
        strict=options.strict,
        **of_given(call, state),
    )


@api(_PREFIX + "set_model_state_dict")
def _set_model(call: Call) -> Value:
    options = _options_of(call.walk, call.get(None, "options"))
    _apply(call, as_modules(call.walk, call.get(0, "model")), call.get(1, "model_state_dict"), options)
    return call.walk.unknown()


@api(_PREFIX + "set_optimizer_state_dict")
def _set_optimizer(call: Call) -> Value:
    options = _options_of(call.walk, call.get(None, "options"))
    as_modules(call.walk, call.get(0, "model"))
    optimizers = as_optimizers(call.walk, call.get(1, "optimizers"))
    _apply(call, optimizers, call.get(2, "optim_state_dict"), options)
    return NONE


@api(_PREFIX + "set_state_dict")
def _set_both(call: Call) -> Value:
    options = _options_of(call.walk, call.get(None, "options"))
    modules = as_modules(call.walk, call.get(0, "model"))
    optimizers = as_optimizers(call.walk, call.get(1, "optimizers"))
    _apply(call, modules, call.get(None, "model_state_dict"), options)
    if optimizers:
        _apply(call, optimizers, call.get(None, "optim_state_dict"), options)
    return call.walk.unknown()
