"""Data: samplers, loaders, seeds, and whether each rank gets samples of its own."""

from __future__ import annotations

import ast
import re

from ...events import EpochSet, LoaderBuilt, SamplerBuilt, Seeded
from ..nodes import nodes
from ..values import NONE, Bound, Class, Const, External, Function, Obj, Partial, Value, What, members
from ..walk import unequal
from ..walk.beginnings import seeded
from ..walk.calls import Call, call_library, callbacks, find_method
from ..walk.classes import lineage
from ..walk.conditions import is_alone
from ..walk.core import Walk
from ..walk.division import differs, of_rank, on_one_machine, sounds_divided, within_machine
from ..walk.escapes import attributes
from ..walk.loops import LOADERS
from .table import anything, api

_SAMPLER = External("torch.utils.data.DistributedSampler")
_ORDINARY = (_SAMPLER, External("torch.utils.data.RandomSampler"), External("torch.utils.data.SequentialSampler"))
# How programs call what makes samples at random.
_RANDOM = re.compile(r"rand|choice|normal|noise|fake|synthetic|dummy|mock", re.IGNORECASE)
# How programs call where in its samples a dataset is.
_POSITION = re.compile(
    r"state_dict|skip|resum|offset|position|cursor|seek|consumed|start_|iterate|__iter__", re.IGNORECASE
)
# Methods of a library's dataset that leave it whole.
_WHOLE = (
    "map", "filter", "with_format", "set_format", "select_columns", "remove_columns", "rename_column", "rename_columns",
)  # fmt: skip


@api(
    "torch.utils.data.DistributedSampler",
    "torch.utils.data.distributed.DistributedSampler",
    "torchdata.stateful_dataloader.sampler.StatefulDistributedSampler",
)
def _sampler(call: Call) -> Value:
    walk = call.walk
    sampler = walk.unknown(_SAMPLER)
    if not call.name.startswith("torch."):
        walk.establish(sampler, "counts")
    rank_is_global = _is_global(walk, call.get(2, "rank"), "torch.distributed.get_rank", "RANK")
    size_is_global = _is_global(walk, call.get(1, "num_replicas"), "torch.distributed.get_world_size", "WORLD_SIZE")
    walk.emit(
        SamplerBuilt,
        call.node,
        sampler=walk.ref(sampler),
        everyone=True if rank_is_global and size_is_global and not call.open else None,
        shuffles=_said(call, call.get(3, "shuffle"), True),
        per_rank=_differs(walk, call.get(4, "seed")) or None,
        by_local_rank=(rank := call.get(2, "rank")) is not None
        and within_machine(walk, rank)
        and not _is_of_machine(call)
        and not any(map(on_one_machine, walk.files())),
    )
    return sampler


def _differs(walk: Walk, seed: Value | None) -> bool:
    """Whether a seed is another number on each rank."""
    return seed is not None and (of_rank(seed) or walk.about(seed) == "clock")


def _is_global(walk: Walk, value: Value | None, getter: str, variable: str) -> bool:
    """Whether an argument was left out, which means the whole job, or is that of the whole job."""
    if value is None or value == NONE:
        return True
    if isinstance(value, Obj):
        return value.cls == External(getter)
    environment = External("os.environ")
    return value in (
        walk.sym("rank", rank=True) if variable == "RANK" else None,
        walk.sym("rank", Const(variable), rank=True),
        walk.sym("item", environment, Const(variable)),
    )


def _is_of_machine(call: Call) -> bool:
    """Whether the samples are divided among the ranks of a machine, which may have some of its own."""
    keywords = call.node.keywords if isinstance(call.node, ast.Call) else []
    written = [ast.unparse(keyword.value) for keyword in keywords if keyword.arg == "num_replicas"]
    return any("local" in text.lower() or "per_node" in text for text in written)


def _said(call: Call, value: Value | None, otherwise: bool) -> bool | None:
    """What an argument says, `otherwise` where it was left out, None where it is not known."""
    if value is None:
        return None if call.open else otherwise
    return bool(value.value) if isinstance(value, Const) else None


@api("torch.utils.data.DataLoader", "torchdata.stateful_dataloader.StatefulDataLoader")
def _loader(call: Call) -> Value:
    walk = call.walk
    cls = LOADERS[call.name]
    loader = walk.unknown(cls) if call.name.startswith("torch.") else walk.new(What.LOADER, cls)
    given = [v for v in (call.get(3, "sampler"), call.get(4, "batch_sampler")) if v is not None and v != NONE]
    samplers = [v for value in given for _, v in members(value) if isinstance(v, Obj) and v.cls == _SAMPLER]
    divided = bool(given) or call.open or is_alone(walk) or _is_divided(walk, call.get(0, "dataset"))
    divided = divided or any(_speaks_of_ranks(walk, value) for value in call.kwargs.values())
    walk.emit(
        LoaderBuilt,
        call.node,
        loader=walk.ref(loader),
        sampler=walk.ref(samplers[0]) if len(samplers) == 1 else None,
        whole=None if divided else True,
        shuffles=_said(call, call.get(2, "shuffle"), False),
        random=_is_random(walk, call.get(0, "dataset")),
        rewinds=_rewinds(call, [v for value in given for _, v in members(value)]) or None,
    )
    if samplers:
        walk.store.set((loader.id, ".sampler"), samplers[0])
    datasets = [v for _, v in members(call.get(0, "dataset") or NONE)]
    parts = [v for value in given for _, v in members(value)] + datasets
    keep = any(_has(walk, v, "state_dict") for v in parts) or any(_is_stream(walk, v) for v in datasets)
    if given and not keep:
        walk.establish(loader, "counts")
    if not given and not call.open and call.get(8, "drop_last") in (None, Const(False)):
        unequal.follow(walk, loader, call.get(0, "dataset"))
    return loader


def _has(walk: Walk, value: Value, name: str) -> bool:
    """Whether a class of the program's own, of which the value is, has this method."""
    return isinstance(value, Obj) and find_method(walk, value, name) is not None


def _is_stream(walk: Walk, dataset: Value) -> bool:
    """Whether samples are only drawn from it one after the other: where it stands is a part of the loader's state."""
    if _has(walk, dataset, "__next__"):
        return True
    return _has(walk, dataset, "__iter__") and not _has(walk, dataset, "__getitem__")


@api("torch.utils.data.Subset")
def _subset(call: Call) -> Value:
    made = call_library(call, call.name)
    return unequal.follow(call.walk, made, call.get(1, "indices"))


def _is_divided(walk: Walk, dataset: Value | None) -> bool:
    """Whether the dataset may be another one on each rank, as far as its source shows."""
    if not isinstance(dataset, Obj):
        return True
    if isinstance(dataset.cls, Class):
        classes, _ = lineage(dataset.cls)
        names = {n for c in classes if isinstance(c, Class) for n in _identifiers(c.node)}
        samples = names & {"__getitem__", "__iter__", "__getitems__"}
        return not samples or sounds_divided(names) or any(differs(walk, v) for v in attributes(walk, dataset))
    return not walk.fact(_whole_of(dataset), "whole")


def _speaks_of_ranks(walk: Walk, value: Value) -> bool:
    """Whether a function that a loader is given, as to collate samples or to seed its workers, speaks of ranks."""
    if isinstance(value, Obj) and isinstance(value.cls, Class):
        return any(differs(walk, v) for v in attributes(walk, value))
    function = value.function if isinstance(value, Bound | Partial) else value
    return isinstance(function, Function) and any(_RANKS.search(name) for name in _identifiers(function.node))


_RANKS = re.compile(r"rank|world", re.IGNORECASE)


def _rewinds(call: Call, samplers: list[Value]) -> bool:
    """Whether nothing can make the loader begin elsewhere than at the first sample, as far as its source shows."""
    dataset = call.get(0, "dataset")
    ordinary = all(isinstance(s, Obj) and s.cls in _ORDINARY and not call.walk.fact(s, "counts") for s in samplers)
    if call.open or not ordinary or call.get(4, "batch_sampler") not in (None, NONE) or not isinstance(dataset, Obj):
        return False
    if isinstance(dataset.cls, Class):
        classes, seen = lineage(dataset.cls)
        names = {n for c in classes if isinstance(c, Class) for n in _identifiers(c.node)}
        elsewhere = any(_POSITION.search(name) or _RANDOM.search(name) for name in names)
        return seen and "__getitem__" in names and not elsewhere
    return call.walk.fact(_whole_of(dataset), "whole") and not call.walk.fact(_whole_of(dataset), "streamed")


def _is_random(walk: Walk, dataset: Value | None) -> bool:
    if not isinstance(dataset, Obj):
        return True
    if isinstance(dataset.cls, Class):
        classes, _ = lineage(dataset.cls)
        return any(_RANDOM.search(n) for c in classes if isinstance(c, Class) for n in _identifiers(c.node))
    name = dataset.cls.name if isinstance(dataset.cls, External) else ""
    return walk.fact(_whole_of(dataset), "random") or _RANDOM.search(name) is not None


def _whole_of(dataset: Obj) -> Obj:
    """What a dataset was taken out of by name, as in `dataset["train"]`."""
    while dataset.parent is not None and dataset.parent[1].startswith("['"):
        dataset = dataset.parent[0]
    return dataset


def _identifiers(node: ast.AST) -> set[str]:
    found = set[str]()
    for part in nodes(node):
        if isinstance(part, ast.Name):
            found.add(part.id)
        elif isinstance(part, ast.Attribute):
            found.add(part.attr)
        elif isinstance(part, ast.FunctionDef | ast.arg | ast.keyword):
            found.add(part.name if isinstance(part, ast.FunctionDef) else part.arg or "")
        elif isinstance(part, ast.Constant) and isinstance(part.value, str) and part.value.isidentifier():
            found.add(part.value)
    return found


@api("torch.utils.data.TensorDataset")
def _tensors(call: Call) -> Value:
    walk = call.walk
    dataset = walk.unknown(External(call.name))
    given = call.everything()
    if not call.open and not any(differs(walk, v) for v in given):
        walk.establish(dataset, "whole")
    # What is not known to be something else may well have been made at random.
    names = [v.cls.name if isinstance(v, Obj) and isinstance(v.cls, External) else "random" for v in given]
    if any(_RANDOM.search(name) for name in names):
        walk.establish(dataset, "random")
    return dataset


@anything(*_WHOLE)
def _still_whole(call: Call, receiver: Value) -> Value | None:
    walk = call.walk
    if (
        not isinstance(receiver, Obj)
        or not walk.fact(_whole_of(receiver), "whole")
        or any(map(of_rank, call.everything()))
    ):
        return None
    callbacks(call, call.everything())
    made = walk.unknown(receiver.cls)
    walk.establish(made, "whole")
    return made


@anything("set_epoch")
def _epoch(call: Call, receiver: Value) -> Value | None:
    known = isinstance(receiver, Obj) and receiver.cls in (_SAMPLER, *LOADERS.values())
    call.walk.emit(EpochSet, call.node, of=call.walk.ref(receiver) if known and isinstance(receiver, Obj) else None)
    return NONE


@api(
    "torch.manual_seed", "torch.random.manual_seed", "torch.cuda.manual_seed", "torch.cuda.manual_seed_all",
    "random.seed", "numpy.random.seed", "transformers.set_seed", "accelerate.utils.set_seed",
    "lightning.seed_everything", "lightning.pytorch.seed_everything", "pytorch_lightning.seed_everything",
)  # fmt: skip
def _seed(call: Call) -> Value:
    written = ast.unparse(call.node) if isinstance(call.node, ast.Call) else ""
    per_rank = any(map(of_rank, call.everything())) or sounds_divided([written])
    if not call.name.startswith(("random.", "numpy.")):
        seeded(call.walk, call.everything())
    of_torch = call.name not in ("random.seed", "numpy.random.seed")
    call.walk.emit(Seeded, call.node, per_rank=per_rank, of_torch=of_torch)
    return call.walk.unknown(External("torch.Generator"))
