"""The dtype of a module's parameters, as far as the program says."""

from __future__ import annotations

from ..values import External, Obj, Tensors, Value, What, members
from .core import Walk

_NAMES = {
    "bfloat16": "bfloat16",
    "float16": "float16",
    "half": "float16",
    "float32": "float32",
    "float": "float32",
    "float64": "float64",
    "double": "float64",
}
_DEFAULT = (0, "%dtype")  # what `torch.set_default_dtype` said last
_UNKNOWN = External("unknown")


def named(value: Value | None) -> str | None:
    """The dtype that a value is, None where it is none, or unknown."""
    if isinstance(value, External) and value.name.startswith("torch."):
        return _NAMES.get(value.name.removeprefix("torch."))
    return None


def default(walk: Walk) -> str | None:
    """The dtype that new parameters have, None where that is torch's own default."""
    return named(walk.get(_DEFAULT))


def set_default(walk: Walk, value: Value | None) -> None:
    """`torch.set_default_dtype`."""
    walk.store.set(_DEFAULT, value if value is not None else _UNKNOWN)


def give(walk: Walk, module: Obj, dtype: str | None) -> None:
    """The parameters of a module have this dtype from now on; those of modules in it too."""
    walk.store.set((module.id, "%dtype"), External(f"torch.{dtype}") if dtype is not None else _UNKNOWN)
    for m in list(walk.modules.values()):
        if walk.store.get((m.id, "%dtype")) is not None and walk.holds(module, m.id):
            walk.store.set((m.id, "%dtype"), None)


def forget(walk: Walk, value: Value) -> None:
    """The dtype of these tensors, or of what is in these modules, may have changed."""
    for _, v in members(value):
        for obj in v.of if isinstance(v, Tensors) else (v,):
            around = obj.found_in() if isinstance(obj, Obj) else ()
            if (module := next((at for at in around if walk.what(at) is What.MODULE), None)) is not None:
                give(walk, module, None)


def dtype_of(walk: Walk, module: Obj) -> str | None:
    """The dtype of all trainable parameters of a module, None where not known."""
    if any(walk.fact(module, fact) for fact in ("elsewhere", "frozen", "partly frozen")):
        return None
    for m in walk.modules.values():
        said = walk.store.get((m.id, "%dtype"))
        if said is not None and walk.holds(module, m.id):
            return None  # a part of it has a dtype of its own
        if walk.holds(module, m.id) and (walk.fact(m, "frozen") or walk.fact(m, "elsewhere")):
            return None
    said = walk.get((module.id, "%dtype"))
    if said is None:
        holders = [m for m in walk.modules.values() if walk.holds(m, module.id)]
        told = [walk.get((m.id, "%dtype")) for m in holders if walk.store.get((m.id, "%dtype")) is not None]
        said = told[0] if len(told) == 1 else None
    return named(said)
