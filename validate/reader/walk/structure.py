"""What a model is made of, as far as its source shows."""

from __future__ import annotations

import ast

from ...events import Attached
from ..values import Class, Const, Elements, External, Obj, Value, What, members
from .classes import lineage
from .core import Walk

WITHOUT_PARAMETERS = {  # modules of torch.nn that own none
    "ReLU", "ReLU6", "GELU", "SiLU", "Mish", "ELU", "SELU", "LeakyReLU", "Sigmoid", "Tanh", "Softmax", "LogSoftmax",
    "Softplus",
    "Hardtanh", "Hardswish", "Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "AlphaDropout", "Identity",
    "Flatten", "Unflatten",
    "MaxPool1d", "MaxPool2d", "MaxPool3d", "AvgPool1d", "AvgPool2d", "AdaptiveAvgPool1d", "AdaptiveAvgPool2d",
    "Upsample",
    "CrossEntropyLoss", "MSELoss", "L1Loss", "NLLLoss", "BCELoss", "BCEWithLogitsLoss", "KLDivLoss", "SmoothL1Loss",
    "Softmax2d",
    "PixelShuffle", "ZeroPad2d", "GLU", "Module",
}  # fmt: skip
WITH_PARAMETERS = {
    "Linear", "Bilinear", "Embedding", "EmbeddingBag", "LayerNorm", "RMSNorm", "GroupNorm", "BatchNorm1d",
    "BatchNorm2d",
    "BatchNorm3d", "SyncBatchNorm", "Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d",
    "MultiheadAttention",
    "LSTM", "GRU", "RNN", "PReLU",
}  # fmt: skip
_COMPOSITE = {
    "TransformerEncoderLayer",
    "TransformerDecoderLayer",
    "TransformerEncoder",
    "TransformerDecoder",
    "Transformer",
}
_DEPTH_LIMIT = 12  # modules within modules
CONTAINERS = {"torch.nn.ModuleList", "torch.nn.Sequential", "torch.nn.ModuleDict"}


def children(walk: Walk, module: Obj) -> tuple[list[tuple[str, Obj]], bool]:
    """The submodules of a module by name; False when there may be others."""
    found: list[tuple[str, Obj]] = []
    names = walk.store.get((module.id, "%children"))
    known = not walk.fact(module, "open")
    for name in names.items if isinstance(names, Elements) else ():
        assert isinstance(name, Const)
        value = walk.attribute(module, str(name.value))
        found += [(str(name.value), v) for _, v in members(value) if isinstance(v, Obj)] if value is not None else []
    content = walk.elements(module)
    if content is not None:
        found += [(str(i) if not v.many else "*", v) for i, v in enumerate(content.items) if isinstance(v, Obj)]
        known = known and (content.exact or any(isinstance(v, Obj) and v.many for v in content.items))
    return found, known


def seen_into(module: Obj) -> bool:
    """Whether the source of the module's class, with its bases, was read."""
    if isinstance(module.cls, Class):
        return lineage(module.cls)[1]
    return isinstance(module.cls, External) and module.cls.name in CONTAINERS


def descendants(walk: Walk, module: Obj) -> tuple[list[Obj], bool]:
    """The module and all in it, outermost first; False when there may be others."""
    found: dict[int, Obj] = {}
    complete = True
    todo = [module]
    while todo:
        current = todo.pop(0)
        if current.id in found:
            continue
        found[current.id] = current
        if is_leaf(current):
            continue
        inner, known = children(walk, current)
        complete = complete and known and seen_into(current)
        todo += [child for _, child in inner if walk.what(child) is What.MODULE]
    return list(found.values()), complete


def is_leaf(module: Obj) -> bool:
    """Whether it is a module of torch.nn that holds no others that a program would shard."""
    if not isinstance(module.cls, External) or not module.cls.name.startswith("torch.nn."):
        return False
    return module.cls.name not in CONTAINERS and module.cls.name.rpartition(".")[2] not in _COMPOSITE


def attach(walk: Walk, node: ast.AST, outer: Obj, value: Value) -> None:
    """A module becomes part of another one; told where it brings parameters into what is sharded already."""
    if walk.building or walk.in_forward or not (walk.is_sharded(outer) or uncovered(walk, outer) == ()):
        return
    for _, v in members(value):
        if not isinstance(v, Obj) or walk.what(v) is not What.MODULE or v.id == outer.id or walk.holds(outer, v.id):
            continue
        if not walk.fact(v, "elsewhere") and (names := _uncovered(walk, v, "", set())[0]):
            walk.emit(Attached, node, module=walk.ref(v), to=walk.ref(outer), parameters=tuple(names))


def uncovered(walk: Walk, module: Obj) -> tuple[str, ...] | None:
    """Trainable parameters in a module that no sharded module manages; None where that is not known."""
    ignored = _ignored(walk, module)
    if any(walk.holds(m, module.id) for m in walk.having("sharded")):
        return ignored
    if walk.fact(module, "elsewhere"):
        return None
    names, known = _uncovered(walk, module, "", set())
    return (*names, *ignored) if names or known else None


def _ignored(walk: Walk, module: Obj) -> tuple[str, ...]:
    """Trainable parameters in a module that `fully_shard` was told to ignore, and that nothing else looks after."""
    found: list[str] = []
    for m in walk.having("ignored"):
        if not walk.holds(module, m.id) or walk.is_sharded(m):
            continue
        settled = [h for fact in ("parallelised", "partly frozen", "frozen") for h in walk.having(fact)]
        if not any(h.id == m.id or walk.holds(h, m.id) for h in settled):
            found += _uncovered(walk, m, walk.name(m).removeprefix(walk.name(module) + ".") + ".", set())[0]
    return tuple(found)


def borrows(walk: Walk, module: Obj) -> Obj | None:
    """The sharded module around a module that manages its parameters, if it has any and nothing in it is sharded."""
    if walk.is_sharded(module) or walk.fact(module, "elsewhere"):
        return None
    around = [m for m in walk.having("sharded") if walk.holds(m, module.id)]
    nearest = [m for m in around if not any(walk.holds(m, other.id) for other in around)]
    return nearest[0] if len(nearest) == 1 and _uncovered(walk, module, "", set())[0] else None


def _uncovered(walk: Walk, module: Obj, prefix: str, seen: set[int]) -> tuple[list[str], bool]:
    if module.id in seen or walk.fact(module, "sharded") or walk.fact(module, "frozen"):
        return [], True
    seen.add(module.id)
    if walk.fact(module, "elsewhere"):
        return [], False
    cls = module.cls
    if is_leaf(module):
        assert isinstance(cls, External)
        short = cls.name.rpartition(".")[2]
        if short in WITH_PARAMETERS:
            return [prefix + ("in_proj_weight" if short == "MultiheadAttention" else "weight")], True
        return [], short in WITHOUT_PARAMETERS
    inner, known = children(walk, module)
    known = known and (seen_into(module) or walk.fact(module, "children sharded"))
    names = [] if walk.fact(module, "children sharded") else _own_parameters(walk, module, prefix)
    for name, child in inner:
        if walk.what(child) is not What.MODULE:
            continue
        more, sure = _uncovered(walk, child, f"{prefix}{name}.", seen)
        names += more
        known = known and sure
    return names, known


def _own_parameters(walk: Walk, module: Obj, prefix: str) -> list[str]:
    found = []
    for name in walk.store.names(module.id):
        value = walk.store.get((module.id, name)) if name.startswith(".") else None
        if isinstance(value, Obj) and value.cls == External("torch.nn.Parameter") and not walk.fact(value, "frozen"):
            found.append(prefix + name[1:])
    return found


def owning(walk: Walk, module: Obj, prefix: str = "", depth: int = 0) -> list[tuple[str, Obj]]:
    """The modules in a module that own trainable parameters, by name, as far as they are known."""
    if depth > _DEPTH_LIMIT or walk.fact(module, "frozen"):
        return []
    if is_leaf(module):
        short = module.cls.name.rpartition(".")[2] if isinstance(module.cls, External) else ""
        return [(prefix, module)] if short in WITH_PARAMETERS else []
    found = [(prefix, module)] if _own_parameters(walk, module, "") else []
    for name, inner in children(walk, module)[0]:
        if walk.what(inner) is What.MODULE:
            found += owning(walk, inner, f"{prefix}.{name}" if prefix else name, depth + 1)
    return found


def drops(walk: Walk, module: Obj) -> bool | None:
    """Whether a layer in the module leaves out values at random; None where none is known that does."""
    return any(m.id == module.id or walk.holds(module, m.id) for m in walk.having("drops")) or None


def has_blocks(walk: Walk, module: Obj) -> bool | None:
    """Whether the module holds a sequence of two or more composite blocks; None where unknown."""
    if walk.fact(module, "blocks"):
        return True
    every, complete = descendants(walk, module)
    for candidate in every:
        content = walk.elements(candidate)
        if content is None:
            continue
        blocks = [v for v in content.items if isinstance(v, Obj) and is_composite(walk, v)]
        if any(b.many for b in blocks) or len(blocks) >= 2 or (blocks and not content.exact):
            return True
    return False if complete else None


def is_composite(walk: Walk, module: Obj) -> bool:
    """Whether the module is made of others: a block, not a layer."""
    inner, _ = children(walk, module)
    if isinstance(module.cls, External):
        is_small_model = module.cls.name == "torch.nn.Sequential" and len(inner) > 1
        return is_small_model or module.cls.name.rpartition(".")[2] in _COMPOSITE
    return isinstance(module.cls, Class) and bool(inner or not lineage(module.cls)[1])
