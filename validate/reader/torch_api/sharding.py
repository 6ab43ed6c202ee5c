"""`fully_shard` and the methods that it gives to a module."""

from __future__ import annotations

import ast

from ...events import (
    AllReduceSet,
    EntryRegistered,
    GradientsClipped,
    GradientSyncSet,
    Precision,
    Resharded,
    Sharded,
    Unsharded,
    WrapperApiUsed,
)
from ..values import NONE, Class, Const, External, Obj, Tuple, Value, What, members, single
from ..walk import dtypes
from ..walk.calls import Call, find_method
from ..walk.classes import lineage
from ..walk.core import owners, parts
from ..walk.structure import has_blocks, uncovered
from ..walk.uses import doubted, lacks
from .launch import dims_of, root_of
from .modules import as_modules
from .parallel import mixed
from .table import anything, api, method

_LISTS = {External("torch.nn.ModuleList"), External("torch.nn.ModuleDict")}
_OFFLOADING = External("torch.distributed.fsdp.CPUOffloadPolicy")


@api("torch.distributed.fsdp.fully_shard", "torch.distributed._composable.fully_shard")
def _fully_shard(call: Call) -> Value:
    walk = call.walk
    given = call.get(0, "module")
    mesh = call.get(None, "mesh")
    values = [given] if given is not None else []
    if isinstance(given, Obj) and given.what is What.LIST:
        values = parts(walk, given)
    elif isinstance(given, Tuple):
        values = list(given.items)
    ignored = _ignored(call)
    together = list(map(walk.ref, (module for value in values for module in as_modules(walk, value))))
    for value in values:
        modules = [module for module in as_modules(walk, value) if walk.what(module) is What.MODULE]
        for module in modules:
            names = uncovered(walk, module)
            walk.emit(
                Sharded,
                call.node,
                module=walk.ref(module),
                mesh=walk.ref(mesh) if isinstance(mesh, Obj) and walk.what(mesh) is What.MESH else None,
                blocks=has_blocks(walk, module),
                manages=None if names is None else bool(names),
                keeps=_keeps(call),
                offload=_offloads(call),
                container=value is given and len(modules) == 1 and _is_container(call, module),
                mesh_dims=dims_of(walk, mesh) if call.kwargs.get("dp_mesh_dims", NONE) == NONE else None,
                precision=_precision(call),
                beside=tuple(ref for ref in together if value is not given and ref.id != module.id),
                ignores=tuple(walk.ref(m) for m in ignored if walk.holds(module, m.id)),
                root=root_of(walk, mesh),
                everyone=mesh in (None, NONE) and not call.open,
                among=len(modules) > 1,
            )
            walk.establish(module, "sharded")
            _cover_children(call, module)
    return given if given is not None else walk.unknown()


def _ignored(call: Call) -> list[Obj]:
    """The modules whose parameters are to be left alone, where they are told by their modules."""
    walk, given = call.walk, call.get(None, "ignored_params")
    found = [m for m in owners(given, walk) if walk.what(m) is What.MODULE] if given is not None else []
    for module in found:
        walk.establish(module, "ignored")
    return found


def _keeps(call: Call) -> bool | None:
    """Whether nothing tells the group to reshard after forward."""
    given = call.get(None, "reshard_after_forward")
    if given is None:
        return None if call.open else True
    return given.value in (None, False) if isinstance(given, Const) else None


def _is_container(call: Call, module: Obj) -> bool:
    """Whether it is sure to be refused, since it is a list or dictionary of modules that has no `forward`."""
    walk = call.walk
    if isinstance(module.cls, Class):
        classes, seen = lineage(module.cls)
        listed = seen and not _LISTS.isdisjoint(classes) and find_method(walk, module, "forward") is None
    else:
        listed = module.cls in _LISTS
    # A program that goes through modules and asks something of each may ask by way of it whether it has a forward.
    node = call.node.args[0] if isinstance(call.node, ast.Call) and call.node.args else None
    sifted = isinstance(node, ast.Name) and bool(walk.tests_on_the_way())
    handlers = [handler for statement in walk.trying for handler in statement.handlers]
    caught = any(handler.type is not None and "ValueError" in ast.unparse(handler.type) for handler in handlers)
    return listed and not (sifted or caught or call.one_of_several or doubted(walk, call.node))


def _precision(call: Call) -> Precision | None:
    """The policy that is passed, None where it is not known."""
    given = call.get(None, "mp_policy")
    if given is None:
        return None if call.open else Precision()
    return given.data if isinstance(given, Obj) and isinstance(given.data, Precision) else None


@api("torch.distributed.fsdp.MixedPrecisionPolicy")
def _policy(call: Call) -> Value:
    """A policy of which both dtypes are known, or one of which nothing is."""
    said: list[str | None] = []
    for position, name in enumerate(("param_dtype", "reduce_dtype")):
        value = call.get(position, name)
        dtype = dtypes.named(value)
        if call.open or (value is not None and value != NONE and dtype is None):
            return call.walk.unknown(External(call.name))
        said.append(dtype)
    return call.walk.new(What.OPTIONS, External(call.name), data=Precision(param=said[0], reduce=said[1]))


def _offloads(call: Call) -> bool | None:
    """Whether the parameters are kept on the host, if only with some option; None where that is not known."""
    given = call.get(None, "offload_policy")
    if given is None:
        return None if call.open else False
    policies = [v for _, v in members(given) if v != NONE]
    if any(isinstance(v, Obj) and v.cls == _OFFLOADING for v in policies):
        return True
    return None if policies else False


def _cover_children(call: Call, module: Obj) -> None:
    """A module that stands for each child of another was sharded: so is each of them."""
    if module.parent is None:
        return
    outer, how = module.parent
    if how in ("children()[*]", "[*]", "modules()[*]"):
        call.walk.establish(outer, "children sharded")


@api("torch.distributed.fsdp.register_fsdp_forward_method")
def _register(call: Call) -> Value:
    walk = call.walk
    name = call.constant(1, "method_name")
    for module in as_modules(walk, call.get(0, "module")):
        walk.emit(EntryRegistered, call.node, module=walk.ref(module), method=name if isinstance(name, str) else None)
        walk.establish(module, f"registered.{name}")
    return NONE


_FSDP1 = "torch.distributed.fsdp.FullyShardedDataParallel"
_OF_WRAPPER = (  # what FSDP1's wrapper class does to the module that it is given
    "full_optim_state_dict", "sharded_optim_state_dict", "optim_state_dict", "optim_state_dict_to_load",
    "scatter_full_optim_state_dict", "shard_full_optim_state_dict", "set_state_dict_type", "state_dict_type",
    "get_state_dict_type", "summon_full_params",
)  # fmt: skip
_OF_WRAPPED = ("no_sync", "clip_grad_norm_", "summon_full_params", "check_is_root")


@api(*(f"{_FSDP1}.{name}" for name in _OF_WRAPPER))
def _of_wrapper(call: Call) -> Value:
    walk = call.walk
    for module in as_modules(walk, call.get(0, "model") or call.get(0, "module")):
        if walk.fact(module, "sharded") and not doubted(walk, call.node):
            name = f"FullyShardedDataParallel.{call.name.rpartition('.')[2]}"
            walk.emit(WrapperApiUsed, call.node, module=walk.ref(module), name=name)
    return walk.unknown()


@method(What.MODULE, *_OF_WRAPPED)
def _of_wrapped(call: Call, module: Obj) -> Value:
    """Methods of FSDP1's wrapper, which a program may have given to a class of its own too."""
    walk = call.walk
    func = call.node.func if isinstance(call.node, ast.Call) else None
    if call.one_of_several:  # a wrapper on another branch
        return walk.unknown()
    if walk.fact(module, "sharded") and isinstance(func, ast.Attribute) and lacks(walk, module, func):
        walk.emit(WrapperApiUsed, call.node, module=walk.ref(module), name=func.attr)
    return walk.unknown()


@anything("set_requires_gradient_sync")
def _sync(call: Call, receiver: Value) -> Value | None:
    walk = call.walk
    on = call.get(0, "requires_gradient_sync")
    for module in as_modules(walk, receiver):
        value = single(on)
        walk.emit(GradientSyncSet, call.node, module=walk.ref(module), on=value if isinstance(value, bool) else None)
    return NONE


@anything("set_requires_all_reduce", "set_is_last_backward")
def _all_reduce(call: Call, receiver: Value) -> Value | None:
    for module in as_modules(call.walk, receiver):
        call.walk.emit(AllReduceSet, call.node, module=call.walk.ref(module))
    return NONE


@method(What.MODULE, "unshard")
def _unshard(call: Call, module: Obj) -> Value:
    call.walk.emit(Unsharded, call.node, module=call.walk.ref(module))
    return call.walk.unknown()


@method(What.MODULE, "reshard")
def _reshard(call: Call, module: Obj) -> Value:
    call.walk.emit(Resharded, call.node, module=call.walk.ref(module))
    return NONE


@method(What.MODULE, "set_modules_to_forward_prefetch", "set_modules_to_backward_prefetch")
def _scheduling(call: Call, _module: Obj) -> Value:
    return call.walk.unknown()


@api("torch.nn.utils.clip_grad_norm_", "torch.nn.utils.clip_grad_value_", "torch.nn.utils.clip_grads_with_norm_")
def _clip(call: Call) -> Value:
    walk = call.walk
    given = call.get(0, "parameters")
    modules = [m for m in owners(given, walk) if walk.what(m) is What.MODULE] if given is not None else []
    sharded = any(walk.form_of(m).value == "sharded" for m in modules)
    walk.emit(
        GradientsClipped,
        call.node,
        modules=tuple(map(walk.ref, modules)),
        sharded=sharded,
        mixed=mixed(walk, given) if call.name.endswith(".clip_grad_norm_") else None,
    )
    return walk.unknown()
