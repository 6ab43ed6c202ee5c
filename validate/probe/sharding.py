"""Hooks on the model: sharding, materialising, compiling, and how forward is entered."""

from __future__ import annotations

import collections
import functools
import importlib
import inspect
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.distributed import device_mesh
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointWrapper
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    FullyShardedDataParallel,
    MixedPrecisionPolicy,
    register_fsdp_forward_method,
)
from torch.distributed.tensor import DTensor, parallel
from torch.nn.modules import module as nn_module
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils.hooks import RemovableHandle

from ..events import (
    ActivationsCheckpointed,
    AllReduceSet,
    Cast,
    Compiled,
    EntryRegistered,
    ForwardBypassed,
    ForwardEntered,
    GradientSyncSet,
    Materialised,
    Parallelised,
    Precision,
    Ref,
    Resharded,
    Sharded,
    Unsharded,
    WrapperApiUsed,
)
from .beginnings import Beginnings
from .frames import caller, program_frame, programs
from .identity import Objects
from .initial import Blanks
from .measure import Meter
from .modules import Modules, class_name, drops, dtype_name, has_blocks, has_sharded, parameters
from .observer import Call, Handler, Observer

FULLY_SHARD = (  # where torch exports it, now or once
    "torch.distributed.fsdp",
    "torch.distributed.fsdp._fully_shard",
    "torch.distributed._composable.fsdp",
    "torch.distributed._composable.fsdp.fully_shard",
)
_GROUPS = "torch.distributed.fsdp._fully_shard._fsdp_param_group"
_CASTS = {"half": torch.float16, "bfloat16": torch.bfloat16, "float": torch.float32, "double": torch.float64}
_OF_WRAPPER = (
    "state_dict_type",
    "set_state_dict_type",
    "summon_full_params",
    "optim_state_dict",
    "full_optim_state_dict",
)
_DYNAMO = str(Path(torch.__file__).parent / "_dynamo")
_MODULE_FILE = nn_module.__file__
_REGISTERING_FILE = inspect.getfile(inspect.unwrap(register_fsdp_forward_method))


def install(observer: Observer, modules: Modules, forwards: Forwards) -> None:
    """Hook what this module is about."""

    def sharded(call: Call) -> Handler:
        given = call["module"]
        listed = list(given) if isinstance(given, (list, tuple)) else [given]
        targets = [module for module in listed if isinstance(module, nn.Module)]
        mesh = call["mesh"]
        for module in targets:
            observer.emit(
                Sharded,
                call.frame,
                module=modules.ref(module, call.frame),
                mesh=None if mesh is None else observer.ref(mesh, call.frame, "mesh"),
                blocks=has_blocks(module),
                manages=bool(modules.uncovered(module)),
                keeps=call["reshard_after_forward"] in (None, False),
                offload=isinstance(call["offload_policy"], CPUOffloadPolicy),
                container=module is given and _is_container(module),
                mesh_dims=None if mesh is None or call["dp_mesh_dims"] is not None else mesh.mesh_dim_names,
                precision=_precision(call["mp_policy"]),
                beside=tuple(modules.ref(other, call.frame) for other in targets if other is not module),
                ignores=ignored(module, call),
                root=root(mesh, call),
                everyone=mesh is None,
            )
            forwards.beginnings.sharding(module, mesh)
            observer.recorder.write({"note": "peers", "of": peers(mesh, call)})
        before = [(module, modules.snapshot(module)) for module in targets]
        yield
        for module, earlier in before:
            modules.sharded(module, earlier)
            forwards.beginnings.sharded(module)
            forwards.watch(module)
            forwards.number(module, mesh)

    def peers(mesh: DeviceMesh | None, call: Call) -> list[int]:
        """The ranks over which gradients are averaged; none where that is not known."""
        if call["dp_mesh_dims"] is not None:
            return []
        ranks = range(torch.distributed.get_world_size()) if mesh is None else mesh.mesh.flatten().tolist()
        return list(ranks)

    def ignored(module: nn.Module, call: Call) -> tuple[Ref, ...]:
        own = {id(p) for p in parameters(module)}
        given = [p for p in call["ignored_params"] or () if id(p) in own and p.requires_grad]
        return tuple(modules.ref(m, call.frame) for m in modules.owning(given))

    def root(mesh: DeviceMesh | None, call: Call) -> Ref | None:
        if mesh is None:
            return None
        of = getattr(mesh, "_get_root_mesh", None)  # torch 2.6 keeps the roots of all meshes in one place
        return observer.ref(
            of() if of is not None else device_mesh._mesh_resources.get_root_mesh(mesh), call.frame, "mesh"
        )

    def parallelised(call: Call) -> Handler:
        module, mesh = call["module"], call["device_mesh"]
        shared = _shared(module) if isinstance(module, nn.Module) else []
        try:
            yield
        finally:  # a call that raises has been made too
            if isinstance(module, nn.Module):
                renewed = [owner for owner, name, before in shared if owner._parameters.get(name) is not before]
                observer.emit(
                    Parallelised,
                    call.frame,
                    module=modules.ref(module, call.frame),
                    mesh=None if mesh is None else observer.ref(mesh, call.frame, "mesh"),
                    root=root(mesh, call),
                    renewed=tuple(modules.ref(owner, call.frame) for owner in renewed),
                )

    def materialised(call: Call) -> Handler:
        observer.emit(Materialised, call.frame, module=modules.ref(call.args[0], call.frame))
        yield
        modules.replaced(call.args[0])
        forwards.blanks.mark(call.args[0], recurse=call["recurse"])

    def cast(dtype_of: Callable[[Call], torch.dtype | None]) -> Callable[[Call], Handler]:
        def handle(call: Call) -> Handler:
            module, dtype = call.args[0], dtype_of(call)
            if dtype is not None and any(p.requires_grad and p.is_floating_point() for p in parameters(module)):
                observer.emit(Cast, call.frame, module=modules.ref(module, call.frame), dtype=dtype_name(dtype))
            yield

        return handle

    def wrapper_used(name: str) -> Callable[[Call], Handler]:
        def handle(call: Call) -> Handler:
            module = call["module"] if call["module"] is not None else call["model"]
            if isinstance(module, nn.Module) and isinstance(module, FSDPModule):
                ref = modules.ref(module, call.frame)
                observer.emit(WrapperApiUsed, call.frame, module=ref, name=f"FullyShardedDataParallel.{name}")
            yield

        return handle

    def compiled(call: Call) -> Handler:
        if isinstance(call["model"], nn.Module):
            observer.emit(Compiled, call.frame, module=modules.ref(call["model"], call.frame), wrapped=True)
        yield

    def compiled_in_place(call: Call) -> Handler:
        observer.emit(Compiled, call.frame, module=modules.ref(call.args[0], call.frame), wrapped=False)
        yield

    def recomputed(call: Call) -> Handler:
        frame = program_frame()
        observer.emit(ActivationsCheckpointed, frame, module=modules.ref(call["mod"], frame))
        yield

    def registered(call: Call) -> Handler:
        module = modules.ref(call["module"], call.frame)
        observer.emit(EntryRegistered, call.frame, module=module, method=call["method_name"])
        yield

    def sync_set(call: Call) -> Handler:
        on = call["requires_gradient_sync"]
        module = modules.ref(call.args[0], call.frame)
        observer.emit(GradientSyncSet, call.frame, module=module, on=on if isinstance(on, bool) else None)
        yield

    def all_reduce_set(call: Call) -> Handler:
        observer.emit(AllReduceSet, call.frame, module=modules.ref(call.args[0], call.frame))
        yield

    def gathered(call: Call) -> Handler:
        observer.emit(Unsharded, call.frame, module=modules.ref(call.args[0], call.frame))
        yield

    def resharded(call: Call) -> Handler:
        observer.emit(Resharded, call.frame, module=modules.ref(call.args[0], call.frame))
        yield

    spaces = [space for name in FULLY_SHARD if (space := _module(name)) is not None]
    observer.wrap(spaces, "fully_shard", sharded)
    observer.wrap(spaces, "register_fsdp_forward_method", registered)
    if (group := getattr(_module(_GROUPS), "FSDPParamGroup", None)) is not None:
        observer.wrap([group], "pre_forward", forwards.gathering, by_program=False)
    observer.wrap([FSDPModule], "set_requires_gradient_sync", sync_set)
    observer.wrap([FSDPModule], "set_requires_all_reduce", all_reduce_set)
    observer.wrap([FSDPModule], "set_is_last_backward", all_reduce_set)
    observer.wrap([FSDPModule], "unshard", gathered)
    observer.wrap([parallel, parallel.api], "parallelize_module", parallelised)
    observer.wrap([FSDPModule], "reshard", resharded)
    observer.wrap([nn.Module], "to_empty", materialised)
    observer.wrap([nn.Module], "to", cast(lambda call: torch._C._nn._parse_to(*call.args[1:], **call.kwargs)[1]))
    for name, dtype in _CASTS.items():
        observer.wrap([nn.Module], name, cast(functools.partial(_given, dtype)))
    for name in _OF_WRAPPER:
        observer.wrap([FullyShardedDataParallel], name, wrapper_used(name))
    observer.wrap([nn.Module], "compile", compiled_in_place)
    observer.wrap([torch], "compile", compiled)
    observer.wrap([CheckpointWrapper], "__init__", recomputed, by_program=False)


def _is_container(module: nn.Module) -> bool:
    """Whether `fully_shard` refuses it, as a list or dictionary of modules that has no `forward`."""
    return isinstance(module, (nn.ModuleList, nn.ModuleDict)) and type(module).forward is nn.Module.forward


def _shared(module: nn.Module) -> list[tuple[nn.Module, str, nn.Parameter]]:
    """The parameters in a module that two modules have, with each of these and its name for it."""
    owned = [(m, name, p) for m in module.modules() for name, p in m._parameters.items() if p is not None]
    holders = collections.Counter(id(p) for _, _, p in owned)
    return [one for one in owned if holders[id(one[2])] > 1]


def _precision(policy: Any) -> Precision | None:
    if not isinstance(policy, MixedPrecisionPolicy):
        return None
    said = (policy.param_dtype, policy.reduce_dtype)
    param, reduce = (None if dtype is None else dtype_name(dtype) for dtype in said)
    return Precision(param=param, reduce=reduce)


def _module(name: str) -> Any:
    try:
        importlib.import_module(name)
    except ImportError:
        return None
    return sys.modules[name]  # a package may hold a function under its submodule's name


def _given(dtype: torch.dtype, _call: Call) -> torch.dtype:
    return dtype


class Forwards:
    """Watches `forward` of FSDP modules, through the class that `fully_shard` makes for each of their classes."""

    def __init__(self, observer: Observer, modules: Modules, meter: Meter) -> None:
        self._observer = observer
        self._meter = meter
        self._modules = modules
        self._watched = set[type]()
        self._entered_before = set[int]()  # ids of the refs of modules
        self._numbers = Objects()  # of modules, in the order in which they were sharded
        self._sharded = 0
        self.blanks = Blanks()
        self.beginnings = Beginnings()
        self._guard: RemovableHandle | None = None
        # Depth of FSDP forwards, the frame of the last call found from inside, the order of the last call.
        self._here = threading.local()

    def watch(self, module: nn.Module) -> None:
        """Watch the class of a module that was just sharded."""
        cls = type(module)
        if self._guard is None and any(p.is_meta for p in parameters(module)):
            self._guard = register_module_forward_pre_hook(self._about_to_enter)
        if not isinstance(module, FSDPModule) or cls in self._watched or "forward" in vars(cls):
            return
        self._watched.add(cls)
        cls.forward = self._around(cls.forward)

    def number(self, module: nn.Module, mesh: DeviceMesh | None) -> None:
        """Give a sharded module the number by which ranks agree what it is; over some ranks only, it has none."""
        self._sharded += 1
        if mesh is None or mesh.size() == torch.distributed.get_world_size():
            self._numbers.set(module, self._sharded)

    def _around(self, original: Callable[..., Any]) -> Callable[..., Any]:
        here = self._here

        @functools.wraps(original)
        def forward(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or not self._observer.recorder.own:
                return original(module, *args, **kwargs)
            order = None
            try:
                begun = self._here.__dict__.pop("begun", None)
                order = begun[1] if begun is not None and begun[0] is module else self._entered(module)
                self._called(module, order)
                if order is not None:
                    self._meter.before_forward(module, args, kwargs)
            except Exception:
                self._observer.failed()
            here.depth = getattr(here, "depth", 0) + 1
            try:
                result = original(module, *args, **kwargs)
            finally:
                here.depth -= 1
            if order is not None:
                self._observer.returned(order)
            return result

        return forward

    def gathering(self, call: Call) -> Handler:
        """FSDP gathers the parameters of a module, and so may wait for ever, before its `forward` begins.

        A call of what was called before is told of here. A first call is looked at once its parameters are there.
        """
        module = call.args[1]
        hooked = list(_hooked(caller())) if not getattr(self._here, "depth", 0) else []
        known = self._observer.identities.known(hooked[-1][0]) if hooked else None
        if known is not None and known.id in self._entered_before and any(running is module for running, _ in hooked):
            self._here.begun = module, self._entered(module)
        yield

    def _called(self, module: nn.Module, order: int | None) -> None:
        """Note a call of a sharded module under the program's call that leads to it; none does in backward."""
        if order is not None:
            self._here.order = order
        number, under = self._numbers.get(module), getattr(self._here, "order", None)
        if number is None or under is None:
            return
        frame = program_frame()
        place = self._observer.places.of(frame)
        self._observer.recorder.write(
            {
                "note": "called",
                "order": under,
                "number": number,
                "id": self._observer.identities.of(module, class_name(module)).id,
                "at": [place.file, place.line],
            }
        )

    def _entered(self, module: nn.Module) -> int | None:
        """Write what this call of `forward` is; the order of the event that it finishes, if it does finish one."""
        frame = caller()
        if not any(running is module for running, _ in _hooked(frame)):
            if self._bypasses(module, frame):
                place = frame if frame is not None and programs(frame.f_code.co_filename) else program_frame()
                self._observer.emit(ForwardBypassed, place, module=self._modules.ref(module, place))
            return None
        if getattr(self._here, "depth", 0):
            return None  # inside the forward of another FSDP module
        outermost, call = list(_hooked(frame))[-1]
        if call is getattr(self._here, "call", None):
            return None
        place = call.f_back
        while place is not None and place.f_code.co_filename == _MODULE_FILE:
            place = place.f_back
        if place is None or not programs(place.f_code.co_filename):
            return None  # torch calls it: recomputation in backward, say
        if outermost is not module:
            self._here.call = call  # its other FSDP modules are not entered by the program; kept until backward
        return self.entered(outermost, place)

    def _about_to_enter(self, module: nn.Module, _inputs: Any) -> None:
        """A module is called before whose first call FSDP raises where parameters are on the meta device still."""
        if not self._observer.recorder.own:
            return
        try:
            if self._guard is not None:
                self._guard.remove()
            if any(p.is_meta for p in parameters(module)) and (place := program_frame()) is not None:
                ref = self._modules.ref(module, place)
                self._observer.emit(ForwardEntered, place, module=ref, sharded=has_sharded(module), on_meta=True)
        except Exception:
            self._observer.failed()

    def entered(self, module: nn.Module, place: FrameType) -> int:
        """Write that the program called a module."""
        ref = self._modules.ref(module, place)
        first = ref.id not in self._entered_before
        self._entered_before.add(ref.id)
        order = self._observer.emit(
            ForwardEntered,
            place,
            module=ref,
            sharded=has_sharded(module),
            uncovered=self._modules.uncovered(module) if first else None,
            drops=drops(module) if first else None,
            unset=self.blanks.left(module) if first else None,
        )
        if first and (kept := self.beginnings.kept(module)):
            self._observer.recorder.write({"note": "beginning", "order": order, "of": kept})
        self._observer.entered(order)
        return order

    def forget_call(self) -> None:
        """Let go of the last call, and of the one that was found from inside."""
        self._here.call = self._here.order = None

    def _bypasses(self, module: nn.Module, frame: FrameType | None) -> bool:
        """Whether `forward` of a sharded module is about to work on parameters that nobody gathered."""
        if getattr(module, "_compiled_call_impl", None) is not None:
            return False
        while frame is not None:
            code = frame.f_code
            if code.co_filename.startswith(_DYNAMO):
                return False
            frame = frame.f_back
        own = [m._parameters[name] for m in _group(module) for name in self._modules.managed(m)]
        return not own or any(isinstance(p, DTensor) for p in own)


def _group(module: nn.Module) -> Iterator[nn.Module]:
    """A sharded module and those below it, down to the next sharded ones."""
    yield module
    for child in module.children():
        if not isinstance(child, FSDPModule):
            yield from _group(child)


def _hooked(frame: FrameType | None) -> Iterator[tuple[nn.Module, FrameType]]:
    """The calls of modules under way in this thread that run hooks, innermost first.

    Such a call is `module(...)`, or a method of it that `register_fsdp_forward_method` has wrapped.
    """
    while frame is not None:
        code = frame.f_code
        if (code.co_name == "_call_impl" and code.co_filename == _MODULE_FILE) or (
            code.co_name == "wrapped_method" and code.co_filename == _REGISTERING_FILE
        ):
            yield frame.f_locals["self"], frame
        frame = frame.f_back
