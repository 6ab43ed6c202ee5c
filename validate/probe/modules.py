"""Which module holds which, who owns a parameter, and which parameters a sharded module manages.

Everything here goes by identity and type: no parameter's data is ever looked at, and none is referred to weakly, since
`torch.utils.swap_tensors`, by which `to_empty` materialises a sharded module, refuses a tensor that somebody refers to.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from types import FrameType

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn.modules.module import (
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)

from ..events import Attached, ModuleBuilt, Ref, Tied
from .frames import program_frame
from .identity import Objects
from .observer import Observer


class Modules:
    """The program's modules: seen when they register a parameter or a submodule, written when first mentioned."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._built = Objects()  # module: order and frame's place at which its construction began
        self._owners: dict[int, tuple[weakref.ref[nn.Module], torch.Size]] = {}  # by the parameter's id
        self._managed = Objects()  # module: names of its own parameters that an FSDP group manages
        self._held = set[tuple[int, int]]()
        self._mentioned = set[int]()
        register_module_parameter_registration_hook(self._parameter_registered)
        register_module_module_registration_hook(self._module_registered)

    # --- registration ---

    def _parameter_registered(self, module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        if self._observer.recorder.own:
            self._begin(module)
            if parameter is not None:
                self._tied(module, name, parameter)
                self._own(module, parameter)

    def _tied(self, module: nn.Module, name: str, parameter: nn.Parameter) -> None:
        """Write that a parameter is registered that another module has, and keeps."""
        owner = self._former_owner(parameter)
        if owner is None or owner is module or not _has(owner, parameter):
            return
        frame = program_frame(building=module)
        refs = self.ref(module, frame), self.ref(owner, frame)
        self._observer.emit(Tied, frame, module=refs[0], name=name, to=refs[1])

    def _own(self, module: nn.Module, parameter: nn.Parameter) -> None:
        self._owners[id(parameter)] = weakref.ref(module), parameter.shape

    def _module_registered(self, module: nn.Module, name: str, submodule: nn.Module | None) -> None:
        if self._observer.recorder.own and submodule is not None:
            self._begin(module)
            self._attached(module, name, submodule)
            if (holder := self._observer.identities.known(module)) is not None and holder.id in self._mentioned:
                self._write_tree(module)  # the shape of a model that was mentioned has changed

    def _attached(self, module: nn.Module, name: str, submodule: nn.Module) -> None:
        """Write that a module with trainable parameters of its own became part of a sharded one."""
        if isinstance(submodule, FSDPModule) or not any(map(self._managed.get, module.modules())):
            return
        uncovered = self.uncovered(submodule)
        if uncovered and (frame := program_frame(building=module)) is not None:
            held = self._observer.ref(submodule, frame, name)
            outer = self.ref(module, frame)
            self._observer.emit(Attached, frame, module=held, to=outer, parameters=uncovered)

    def _begin(self, module: nn.Module) -> None:
        if self._built.get(module) is None:
            place = self._observer.places.of(program_frame(building=module))
            self._built.set(module, (self._observer.recorder.order(), place))

    # --- refs ---

    def ref(self, module: nn.Module, frame: FrameType | None) -> Ref:
        """The ref of a module that an event mentions; its construction and its tree are written down first."""
        ref = self._observer.ref(module, frame, class_name(module))
        if ref.id not in self._mentioned:
            self._mentioned.add(ref.id)
            if (built := self._built.get(module)) is not None:
                order, at = built
                meta = [parameter.is_meta for parameter in parameters(module)]
                event = ModuleBuilt(
                    order=order, at=at, module=ref, cls=class_name(module), meta=any(meta) if meta else None
                )
                self._observer.write(event)
        self._write_tree(module)
        return ref

    def _write_tree(self, module: nn.Module) -> None:
        """Note which module holds which, as far as that was not written before."""
        identities = self._observer.identities
        edges = []
        todo, seen = [module], {id(module)}
        while todo:
            outer = todo.pop()
            holder = identities.of(outer, class_name(outer))
            for name, inner in outer._modules.items():
                if inner is None:
                    continue
                held = identities.of(inner, f"{holder.name}.{name}")
                if (held.id, holder.id) not in self._held:
                    self._held.add((held.id, holder.id))
                    edges.append([held.id, holder.id, name])
                if id(inner) not in seen:
                    seen.add(id(inner))
                    todo.append(inner)
        if edges:
            self._observer.recorder.write({"note": "held", "edges": edges})

    # --- parameters ---

    def owning(self, params: Iterable[torch.Tensor]) -> list[nn.Module]:
        """The modules whose parameters these are: the largest that have no trainable parameter besides them."""
        given = {id(p) for p in params}
        if not given:
            return []
        complete = Objects()
        everything = self.all()
        for module in everything:
            own = [p for p in parameters(module) if p.requires_grad or id(p) in given]
            if own and all(id(p) in given for p in own):
                complete.set(module, True)
        inner = {id(child) for module in complete for child in descendants(module)}
        largest = [module for module in complete if id(module) not in inner]
        covered = {id(p) for module in largest for p in parameters(module)}
        partial = [m for m in everything if any(id(p) in given - covered for p in m._parameters.values())]
        orphans = [p for p in params if id(p) not in covered and not any(_has(m, p) for m in partial)]
        former = [owner for p in orphans if (owner := self._former_owner(p)) is not None]
        return list({id(m): m for m in [*largest, *partial, *former]}.values())

    def _former_owner(self, parameter: torch.Tensor) -> nn.Module | None:
        """The module that a parameter was registered in, where it has since been replaced there."""
        owner, shape = self._owners.get(id(parameter), (None, None))
        return owner() if owner is not None and shape == parameter.shape else None

    def names(self, params: Iterable[torch.Tensor]) -> tuple[str, ...]:
        """The FQNs of parameters, in the order given; none where one has none."""
        known = {id(p): name for root in self.roots() for name, p in root.named_parameters()}
        found = [known.get(id(p)) for p in params]
        return tuple(name for name in found if name is not None) if None not in found else ()

    def snapshot(self, module: nn.Module) -> set[int]:
        """The ids of the DTensors among the parameters of a module."""
        return {id(p) for p in parameters(module) if isinstance(p, DTensor)}

    def sharded(self, module: nn.Module, before: set[int]) -> None:
        """Take note of the parameters that `fully_shard(module)` has made DTensors, or other ones, since `before`."""
        for m in module.modules():
            for name, p in m._parameters.items():
                if isinstance(p, DTensor) and id(p) not in before:
                    self.managed(m)[name] = tuple(p.shape)
                    self._own(m, p)

    def replaced(self, module: nn.Module) -> None:
        """Take note of the parameters of a module after `to_empty`, which registers none of those that it makes."""
        for m in module.modules():
            for p in m._parameters.values():
                if p is not None:
                    self._own(m, p)

    def managed(self, module: nn.Module) -> dict[str, tuple[int, ...]]:
        """The module's own parameters that an FSDP group manages: their names and global shapes."""
        names: dict[str, tuple[int, ...]] | None = self._managed.get(module)
        if names is None:
            names = {}
            self._managed.set(module, names)
        return names

    def uncovered(self, module: nn.Module) -> tuple[str, ...]:
        """Names of the trainable parameters in a module that no FSDP group manages."""
        names = []
        for prefix, m in module.named_modules():
            managed = self.managed(m)
            for name, p in m._parameters.items():
                if p is not None and p.requires_grad and name not in managed and not isinstance(p, DTensor):
                    names.append(f"{prefix}.{name}" if prefix else name)
        return tuple(names)

    def global_shapes(self, module: nn.Module) -> dict[str, tuple[int, ...]]:
        """The FQNs of the parameters in a module that are sharded, with their global shapes."""
        return {
            f"{prefix}.{name}" if prefix else name: shape
            for prefix, m in module.named_modules()
            for name, shape in self.managed(m).items()
        }

    def all(self) -> list[nn.Module]:
        """The living modules that hold a parameter or a module."""
        return list(self._built)

    def roots(self) -> list[nn.Module]:
        """The living modules that no other module holds."""
        everything = self.all()
        held = {id(inner) for m in everything for inner in m._modules.values() if inner is not None}
        return [m for m in everything if id(m) not in held]


def _has(module: nn.Module, parameter: torch.Tensor) -> bool:
    return any(p is parameter for p in module._parameters.values())


def parameters(module: nn.Module) -> Iterator[nn.Parameter]:
    """The parameters in a module's tree, as they are registered at this moment."""
    for m in module.modules():
        for p in m._parameters.values():
            if p is not None:
                yield p


def descendants(module: nn.Module) -> Iterator[nn.Module]:
    """The modules below a module."""
    return (m for m in module.modules() if m is not module)


def original_class(module: nn.Module) -> type:
    """The class as the program wrote it: `fully_shard` gives a sharded module one of its own."""
    cls = type(module)
    return cls.__mro__[cls.__mro__.index(FSDPModule) + 1] if FSDPModule in cls.__mro__ else cls


def class_name(module: nn.Module) -> str:
    """The name of that class."""
    return original_class(module).__name__


def dtype_name(dtype: torch.dtype) -> str:
    """A dtype as events call it."""
    return str(dtype).removeprefix("torch.")


def has_sharded(module: nn.Module) -> bool:
    """Whether a module, or one inside it, is an FSDP module."""
    return any(isinstance(m, FSDPModule) for m in module.modules())


def drops(module: nn.Module) -> bool:
    """Whether a layer in a module leaves out values at random as it stands."""
    layers = [m for m in module.modules() if m.training and type(m).__module__.startswith("torch.nn.")]
    return any(
        ("Dropout" in type(m).__name__ and getattr(m, "p", 0) > 0)
        or (isinstance(m, nn.MultiheadAttention) and m.dropout > 0)
        for m in layers
    )


def has_blocks(module: nn.Module) -> bool:
    """Whether a module holds a sequence of at least two composite blocks of one class that have parameters."""
    for m in module.modules():
        if isinstance(m, (nn.ModuleList, nn.Sequential, nn.ModuleDict)):
            composite = [
                c
                for c in m.children()
                if next(c.children(), None) is not None and next(parameters(c), None) is not None
            ]
            classes = [original_class(c) for c in composite]
            if any(classes.count(cls) > 1 for cls in classes):
                return True
    return False
