"""`nn.Module`: what it is built of, what its methods do, and what wraps it."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from ...events import (
    Cast,
    Compiled,
    DeepCopied,
    Form,
    GradientsCleared,
    Kind,
    Materialised,
    ModuleBuilt,
    StateApplied,
    StateTaken,
    Via,
)
from ..values import (
    NONE,
    Class,
    Elements,
    External,
    Items,
    Obj,
    StateData,
    Tensors,
    Tuple,
    Value,
    What,
    members,
    single,
)
from ..walk import beginnings, contents, dtypes, prefixes
from ..walk.assignment import set_attribute
from ..walk.calls import Call, bypass_forward, enter_forward, is_kept_forward, walk_forward
from ..walk.core import Walk
from ..walk.lookup import ATTRIBUTES
from ..walk.loops import iterate
from ..walk.structure import attach, children, descendants
from .applied import flag, of_given
from .losses import ignores, is_mean
from .table import anything, api, method


def built(call: Call, module: Obj, name: str) -> None:
    """A module was constructed."""
    walk = call.walk
    device = call.kwargs.get("device")
    meta: bool | None = walk.meta[-1] if walk.meta else (False if walk.in_entry else None)
    if device is not None and device != NONE:
        named = device.data if isinstance(device, Obj) else single(device)
        meta = named == "meta" if isinstance(named, str) else None
    if meta:
        contents.empty(walk, module, "meta")
    dtype = dtypes.named(call.kwargs.get("dtype") or call.kwargs.get("torch_dtype")) if not walk.building else None
    if (dtype := dtype or dtypes.default(walk)) is not None:
        dtypes.give(walk, module, dtype)
    walk.emit(ModuleBuilt, call.node, module=walk.ref(module), cls=name, meta=meta)
    contents.note_made(walk, module, call.node)
    if meta is False and _method_name(call) != "from_pretrained":  # which loads the same weights on all ranks
        beginnings.built(walk, module)


def as_modules(walk: Walk, value: Value | None) -> list[Obj]:
    """The modules that a value given for a module is; an unknown object is one from now on."""
    found: list[Obj] = []
    for _, v in members(value) if value is not None else ():
        if isinstance(v, Obj) and v.what is What.OPAQUE:
            walk.take_role(v, What.MODULE)
        if isinstance(v, Obj) and walk.what(v) is What.MODULE:
            found.append(v)
    return found


def new_module(call: Call, name: str) -> Obj:
    """A module of a library class."""
    module = call.walk.new(What.MODULE, External(name))
    call.walk.modules[module.id] = module
    return module


# Layers that leave out values at random: position and name of the probability, and what it is when it is left out.
_DROPPING = {
    **dict.fromkeys(
        ("Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "AlphaDropout", "FeatureAlphaDropout"), (0, "p", 0.5)
    ),
    **dict.fromkeys(("TransformerEncoderLayer", "TransformerDecoderLayer"), (3, "dropout", 0.1)),
    "Transformer": (5, "dropout", 0.1),
    "MultiheadAttention": (2, "dropout", 0.0),
}


def _drops(call: Call, cls: str) -> bool:
    """Whether a layer certainly leaves out values at random."""
    if cls not in _DROPPING:
        return False
    position, name, otherwise = _DROPPING[cls]
    value = call.get(position, name)
    if value is None:
        return otherwise > 0 and not call.open
    probability = single(value)
    return isinstance(probability, int | float) and probability > 0


@api("torch.nn.*")
def _library_module(call: Call) -> Value:
    """A class of torch.nn: a layer, or a loss."""
    name = call.name
    if not name.rpartition(".")[2][:1].isupper():
        return call.walk.unknown()
    module = new_module(call, name)
    if _drops(call, name.rpartition(".")[2]):
        call.walk.establish(module, "drops")
    if name.endswith("Loss") and is_mean(call):
        call.walk.establish(module, "means")
        if ignores(call):
            call.walk.establish(module, "ignores")
    elif name.endswith("Loss") and call.constant(None, "reduction") == "sum":
        call.walk.establish(module, "sums")
    for value in call.everything():
        for _, v in members(value):
            if isinstance(v, Obj) and call.walk.what(v) is What.MODULE:
                call.walk.hold(module, v)
                call.walk.establish(module, "open")
    built(call, module, name.rpartition(".")[2])
    return module


def _hold_all(walk: Walk, module: Obj, values: Iterable[Value]) -> None:
    items = tuple(values)
    for value in items:
        walk.hold(module, value)
        for _, v in members(value):
            if isinstance(v, Obj):
                walk.label(v, "[*]" if v.many else f"[{items.index(value)}]", module)
                if v.what is What.OPAQUE:
                    walk.take_role(v, What.MODULE)


@api("torch.nn.Sequential")
def _sequential(call: Call) -> Value:
    module = new_module(call, "torch.nn.Sequential")
    items: list[Value] = list(call.args)
    if len(items) == 1 and isinstance(items[0], Obj) and (content := call.walk.items(items[0])) is not None:
        items = [value for _, value in content.items]
    return _container(call, module, items, exact=not call.open)


@api("torch.nn.ModuleList")
def _module_list(call: Call) -> Value:
    module = new_module(call, "torch.nn.ModuleList")
    given = call.get(0, "modules")
    if given is None:
        return _container(call, module, [], exact=True)
    found = iterate(call.walk, given)
    return _container(call, module, found.values, found.exact)


@api("torch.nn.ModuleDict")
def _module_dict(call: Call) -> Value:
    module = new_module(call, "torch.nn.ModuleDict")
    given = call.get(0, "modules")
    content = call.walk.items(given) if isinstance(given, Obj) else None
    values = [value for _, value in content.items] if content is not None else []
    for key, value in content.items if content is not None else ():
        if isinstance(name := single(key), str):
            call.walk.store.set((module.id, "." + name), value)
            call.walk.store.set((module.id, f"[{name!r}]"), value)
    return _container(call, module, values, exact=given is None or (content is not None and content.exact))


def _container(call: Call, module: Obj, items: list[Value], exact: bool) -> Value:
    walk = call.walk
    _hold_all(walk, module, items)
    walk.store.set((module.id, "%items"), Elements(tuple(items), exact))
    built(call, module, str(getattr(module.cls, "name", "")).rpartition(".")[2])
    return module


@method(What.MODULE, "append", "add_module", "register_module", "extend", "insert", "update")
def _attach(call: Call, module: Obj) -> Value:
    walk = call.walk
    value = call.args[-1] if call.args else call.kwargs.get("module", NONE)
    name = call.constant(0, "name")
    content = walk.elements(module)
    if content is not None:
        is_many = ast.unparse(call.node.func).endswith("extend") if isinstance(call.node, ast.Call) else False
        new = list(iterate(walk, value).values) if is_many else [value]
        for item in new:
            attach(walk, call.node, module, item)
        if walk.loops:  # a list that grows in a loop: one stands for all that this place makes
            new = [Obj(v.id, v.what, v.cls, True, v.parent, v.data) if isinstance(v, Obj) else v for v in new]
        _hold_all(walk, module, new)
        walk.store.set((module.id, "%items"), Elements((*content.items, *new)[:24], content.exact and not walk.loops))
    elif isinstance(name, str) and len(call.args) > 1:
        set_attribute(walk, module, name, value, call.node)
    else:
        attach(walk, call.node, module, value)
        walk.hold(module, value)
        walk.establish(module, "open")
    return module


@method(What.MODULE, "register_parameter")
def _register_parameter(call: Call, module: Obj) -> Value:
    name = call.constant(0, "name")
    if isinstance(name, str) and len(call.args) > 1:
        set_attribute(call.walk, module, name, call.args[1], call.node)
    else:
        contents.fill(call.walk, module)
    return NONE


@method(What.MODULE, "register_buffer")
def _register_buffer(call: Call, module: Obj) -> Value:
    walk = call.walk
    name, given = call.constant(0, "name"), call.get(1, "tensor")
    if not isinstance(name, str):
        contents.fill(walk, module)
    elif given is not None:
        made: Value = given if given == NONE else walk.unknown(contents.BUFFER)
        if isinstance(made, Obj) and call.constant(2, "persistent") is False:
            walk.establish(made, "not persistent")
        set_attribute(walk, module, name, made, call.node)
    return NONE


@api("torch.nn.Parameter", "torch.nn.parameter.Parameter")
def _parameter(call: Call) -> Value:
    made = call.walk.unknown(External("torch.nn.Parameter"))
    contents.note_made(call.walk, made, call.node)
    if call.constant(1, "requires_grad") is False:
        call.walk.establish(made, "frozen")
    return made


# --- what a module is asked for ---


def parameters_of(walk: Walk, module: Obj) -> Tensors:
    """The parameters of a module, as one value."""
    return Tensors((module,), Kind.MODEL, walk.form_of(module), Via.VALUE)


@method(What.MODULE, "parameters", "buffers")
def _parameters(call: Call, module: Obj) -> Value:
    return parameters_of(call.walk, module)


@anything("parameters")
def _parameters_of_unknown(call: Call, receiver: Value) -> Value | None:
    if isinstance(receiver, Obj) and receiver.what is What.OPAQUE:
        call.walk.take_role(receiver, What.MODULE)
        return parameters_of(call.walk, receiver)
    return None


@anything("named_parameters")
def _named_of_unknown(call: Call, receiver: Value) -> Value | None:
    if isinstance(receiver, Obj) and receiver.what is What.OPAQUE:
        call.walk.take_role(receiver, What.MODULE)
        return _named_parameters(call, receiver)
    return None


@method(What.MODULE, "named_parameters", "named_buffers")
def _named_parameters(call: Call, module: Obj) -> Value:
    return call.walk.new_list([Tuple((call.walk.sym(), parameters_of(call.walk, module)))], exact=False)


def _inner(call: Call, module: Obj, found: list[Obj], complete: bool, name: str) -> list[Obj]:
    """The modules found, or one that stands for each of those that are not known."""
    if complete and len(found) <= 16:
        return found
    walk = call.walk
    known = walk.get((module.id, f"%{name}"))
    if isinstance(known, Obj):
        return [known]
    each = Obj(walk.fresh(), What.OPAQUE, None, True, (module, f"{name}()[*]"))
    walk.labels[each.id] = (module.id, f".{name}()[*]")
    walk.put_into(module.id, each.id)
    walk.store.set((module.id, f"%{name}"), each)
    return [each]


def _iterated(call: Call, module: Obj, name: str) -> tuple[list[Obj], bool]:
    walk = call.walk
    if name == "modules":
        every, complete = descendants(walk, module)
        found = _inner(call, module, every, complete, name)
    else:
        direct, complete = children(walk, module)
        complete = complete and isinstance(module.cls, Class | External) and module.what is What.MODULE
        found = _inner(call, module, [child for _, child in direct], complete, name)
    return found, len(found) != 1 or complete


@method(What.MODULE, "children", "modules")
def _children(call: Call, module: Obj) -> Value:
    name = _method_name(call)
    found, exact = _iterated(call, module, name)
    return call.walk.new_list(found, exact)


@method(What.MODULE, "named_children", "named_modules")
def _named_children(call: Call, module: Obj) -> Value:
    name = _method_name(call).removeprefix("named_")
    found, exact = _iterated(call, module, name)
    return call.walk.new_list([Tuple((call.walk.sym(), child)) for child in found], exact)


@method(What.MODULE, "values", "__iter__")
def _values(call: Call, module: Obj) -> Value:
    found = iterate(call.walk, module)
    return call.walk.new_list(found.values, found.exact)


@method(What.MODULE, "items")
def _items(call: Call, module: Obj) -> Value:
    found = iterate(call.walk, module)
    return call.walk.new_list([Tuple((call.walk.sym(), v)) for v in found.values], found.exact)


@anything("modules", "children", "named_modules", "named_children")
def _children_of_unknown(call: Call, receiver: Value) -> Value | None:
    if not (isinstance(receiver, Obj) and receiver.what is What.OPAQUE):
        return None
    call.walk.take_role(receiver, What.MODULE)
    handler = _named_children if _method_name(call).startswith("named_") else _children
    return handler(call, receiver)


def _method_name(call: Call) -> str:
    func = call.node.func if isinstance(call.node, ast.Call) else None
    return func.attr if isinstance(func, ast.Attribute) else "modules"


@anything("values", "items", "keys")
def _of_unknown_mapping(call: Call, receiver: Value) -> Value | None:
    """`model.layers.values()`: each element of an unknown collection."""
    if not (isinstance(receiver, Obj) and receiver.what is What.OPAQUE):
        return None
    found = iterate(call.walk, receiver)
    name = _method_name(call)
    if name == "keys":
        return call.walk.unknown()
    return call.walk.new_list(
        [Tuple((call.walk.sym(), v)) if name == "items" else v for v in found.values], exact=False
    )


@method(
    What.MODULE,
    "cuda",
    "cpu",
    "train",
    "eval",
    "share_memory",
    "xpu",
)
def _same(_call: Call, module: Obj) -> Value:
    return module


@method(What.MODULE, "half", "bfloat16", "float", "double", "type")
def _cast(call: Call, module: Obj) -> Value:
    name = _method_name(call)
    _give_dtype(call, module, dtypes.named(call.get(0, "dst_type") if name == "type" else External(f"torch.{name}")))
    return module


@method(What.MODULE, "to")
def _to(call: Call, module: Obj) -> Value:
    given = call.kwargs.get("dtype")
    asked = [given] if given is not None else [v for v in call.args if dtypes.named(v) is not None]
    if asked:
        _give_dtype(call, module, dtypes.named(asked[0]))
    elif call.open or not all(_is_device(v) for v in call.args[:1]) or len(call.args) > 1:
        dtypes.forget(call.walk, module)
    return module


def _is_device(value: Value) -> bool:
    return isinstance(single(value), str | int) or (isinstance(value, Obj) and value.what is What.DEVICE)


def _give_dtype(call: Call, module: Obj, dtype: str | None) -> None:
    walk = call.walk
    if not walk.fact(module, "frozen"):
        walk.emit(Cast, call.node, module=walk.ref(module), dtype=dtype)
    dtypes.give(walk, module, dtype)


@api("torch.set_default_dtype")
def _set_default_dtype(call: Call) -> Value:
    dtypes.set_default(call.walk, call.get(0, "d"))
    return NONE


@method(What.MODULE, "apply")
def _apply(call: Call, module: Obj) -> Value:
    from ..walk.calls import callbacks

    callbacks(call, call.everything())
    contents.fill(call.walk, module)
    return module


@method(What.MODULE, "requires_grad_")
def _requires_grad(call: Call, module: Obj) -> Value:
    if call.constant(0, "requires_grad") is False:
        call.walk.establish(module, "frozen")
    return module


@anything("requires_grad_")
def _requires_grad_of_tensors(call: Call, receiver: Value) -> Value | None:
    if isinstance(receiver, Tensors) and call.constant(0, "requires_grad") is False:
        for owner in receiver.of:
            call.walk.establish(owner, "frozen")
        return receiver
    if isinstance(receiver, Tensors):
        for owner in receiver.of:
            call.walk.establish(owner, "partly frozen")
    return None


@method(What.MODULE, "to_empty")
def _to_empty(call: Call, module: Obj) -> Value:
    call.walk.emit(Materialised, call.node, module=call.walk.ref(module))
    contents.empty(call.walk, module)
    return module


@anything("to_empty")
def _to_empty_of_unknown(call: Call, receiver: Value) -> Value | None:
    if isinstance(receiver, Obj) and receiver.what is What.OPAQUE:
        call.walk.take_role(receiver, What.MODULE)
        return _to_empty(call, receiver)
    return None


@method(What.MODULE, "zero_grad")
def _zero_grad(call: Call, module: Obj) -> Value:
    call.walk.emit(GradientsCleared, call.node, of=call.walk.ref(module))
    return NONE


@method(What.MODULE, "forward")
def _forward(call: Call, module: Obj) -> Value:
    receiver = call.walk.frame.receiver
    through_super = isinstance(call.node, ast.Call) and "super(" in ast.unparse(call.node.func)
    if isinstance(call.node, ast.Call) and is_kept_forward(call.walk, call.node):
        return walk_forward(call, module, "forward")
    if not through_super or receiver != module:
        bypass_forward(call, module, "forward")
        return walk_forward(call, module, "forward")
    return call.walk.unknown()


@method(What.MODULE, "__call__")
def _called(call: Call, module: Obj) -> Value:
    return enter_forward(call, module)


@method(What.MODULE, "compile")
def _compile_in_place(call: Call, module: Obj) -> Value:
    call.walk.emit(Compiled, call.node, module=call.walk.ref(module), wrapped=False)
    return NONE


@api("torch.compile")
def _compile(call: Call) -> Value:
    value = call.get(0, "model")
    if value is None:
        return External("builtins.staticmethod")  # a decorator with options
    for module in [v for _, v in members(value) if isinstance(v, Obj) and call.walk.what(v) is What.MODULE]:
        call.walk.emit(Compiled, call.node, module=call.walk.ref(module), wrapped=True)
    return prefixes.wrap(value)


@api(
    "torch.distributed._composable.checkpoint_activation.checkpoint",
    "torch.distributed._composable.replicate.replicate", "torch.distributed._composable.replicate",
    "torch.distributed._composable.checkpoint",
    "torch.distributed.tensor.distribute_module",
    "torch.nn.utils.parametrizations.weight_norm", "torch.nn.utils.parametrizations.spectral_norm",
    "torch.nn.SyncBatchNorm.convert_sync_batchnorm",
)  # fmt: skip
def _wrapped_in_place(call: Call) -> Value:
    """Wrappers after which the program goes on with the same module, for all that the contract says."""
    for value in call.args[:1]:
        as_modules(call.walk, value)
    return call.args[0] if call.args else call.kwargs.get("module", call.walk.unknown())


@api(
    "torch.nn.parallel.DistributedDataParallel",
    "torch.nn.DataParallel",
    "torch.distributed.fsdp.FullyShardedDataParallel",
)
def _replicated(call: Call) -> Value:
    """A wrapper that looks after the parameters in its own way."""
    walk = call.walk
    outer = new_module(call, "torch.nn.parallel.DistributedDataParallel")
    for module in as_modules(walk, call.get(0, "module")):
        set_attribute(walk, outer, "module", module, call.node)
        walk.establish(module, "elsewhere")
    walk.establish(outer, "elsewhere")
    return outer


@api("copy.deepcopy", "copy.copy")
def _copied(call: Call) -> Value:
    value = call.get(0, "x")
    if isinstance(value, Obj) and call.walk.what(value) is What.MODULE:
        if call.name.endswith("deepcopy"):
            _deep_copied(call, value)
        made = call.walk.new(value.what, value.cls, data=value.data)
        call.walk.modules[made.id] = made
        call.walk.establish(made, "elsewhere")
        return made
    if isinstance(value, Obj) and value.what in (What.DICT, What.LIST):
        made = call.walk.new(value.what)
        content = call.walk.content(value)
        assert isinstance(content, Items | Elements)
        call.walk.store.set((made.id, "%items"), content)
        return made
    if isinstance(value, Obj) and value.what is What.OPAQUE and call.name.endswith("deepcopy"):
        return call.walk.unknown(value.cls)  # it may be a module, and then is another one
    return value if value is not None else call.walk.unknown()


@api("torch.optim.swa_utils.AveragedModel")
def _averaged(call: Call) -> Value:
    """Keeps a deep copy of a model, whose parameters it averages."""
    module = call.get(0, "model")
    if isinstance(module, Obj) and call.walk.what(module) is What.MODULE:
        _deep_copied(call, module)
    made = new_module(call, call.name)
    call.walk.establish(made, "elsewhere")
    return made


def _deep_copied(call: Call, module: Obj) -> None:
    walk = call.walk
    handlers = [handler for statement in walk.trying for handler in statement.handlers]
    if not (handlers or call.one_of_several):
        walk.emit(DeepCopied, call.node, module=walk.ref(module))


# --- state ---


@method(What.MODULE, "state_dict")
def _state_dict(call: Call, module: Obj) -> Value:
    walk = call.walk
    contents.fill(walk, module, "loaded")  # the program may write into the tensors of its state
    form = walk.form_of(module)
    aliased = True if form is Form.SHARDED else None
    prefix = prefixes.of_keys(walk, module)
    data = StateData((module,), Kind.MODEL, form, Via.METHOD, False, False, aliased, prefix=prefix)
    state = walk.new(What.STATE, data=data)
    walk.emit(StateTaken, call.node, of=(walk.ref(module),), state=walk.ref(state), via=Via.METHOD)
    return state


@method((What.MODULE, What.OPTIMIZER, What.SCHEDULER, What.LOADER), "load_state_dict")
def _load_state_dict(call: Call, target: Obj) -> Value:
    walk = call.walk
    state = call.get(0, "state_dict")
    contents.fill(walk, target, "loaded")
    beginnings.loaded(walk, target)
    known = state if isinstance(state, Obj) else None
    walk.emit(
        StateApplied,
        call.node,
        to=(walk.ref(target),),
        state=walk.ref(known) if known else None,
        via=Via.METHOD,
        full=False,
        strict=flag(call, 1, "strict", True),
        assign=flag(call, 2, "assign", False),
        **of_given(call, state),
    )
    return walk.unknown()


@anything("load_state_dict")
def _load_of_unknown(call: Call, receiver: Value) -> Value | None:
    if not (isinstance(receiver, Obj) and receiver.what is What.OPAQUE):
        return None
    return _load_state_dict(call, receiver)


@anything("state_dict")
def _state_of_unknown(call: Call, receiver: Value) -> Value | None:
    """The state of an unknown object: sharded or not, of a model or not, who knows."""
    if not (isinstance(receiver, Obj) and receiver.what is What.OPAQUE):
        return None
    walk = call.walk
    prefix = prefixes.of_keys(walk, receiver)
    state = walk.new(What.STATE, data=StateData((receiver,), Kind.UNKNOWN, Form.UNKNOWN, Via.METHOD, prefix=prefix))
    walk.emit(StateTaken, call.node, of=(walk.ref(receiver),), state=walk.ref(state), via=Via.METHOD)
    return state


@anything("from_pretrained", "from_config")
def _pretrained(call: Call, receiver: Value) -> Value | None:
    return _from_hub(call) if isinstance(receiver, External) and "AutoModel" in receiver.name else None


_AUTO_MODELS = (
    "AutoModel",
    "AutoModelForCausalLM",
    "AutoModelForMaskedLM",
    "AutoModelForSeq2SeqLM",
    "AutoModelForSequenceClassification",
)


@api(*(f"transformers.{cls}.{way}" for cls in _AUTO_MODELS for way in ("from_pretrained", "from_config")))
def _from_hub(call: Call) -> Value:
    """A transformer of a library: its class is not known, but that it is a stack of blocks is."""
    module = new_module(call, "transformers.AutoModel")
    call.walk.establish(module, "blocks")
    call.walk.establish(module, "open")
    built(call, module, "AutoModel")
    return module


ATTRIBUTES[(What.MODULE, "device")] = lambda walk, module, _node: walk.sym("device", module)
ATTRIBUTES[(What.MODULE, "dtype")] = lambda walk, module, _node: walk.sym("dtype", module)
