"""Whether all ranks begin with the same weights: they draw them alike, and load the same or are given the others'."""

from __future__ import annotations

from collections.abc import Iterable

from ..values import Const, External, Obj, Sym, Value, What, members
from .contents import of_a_resume, relatives
from .core import Walk
from .division import origins
from .structure import CONTAINERS, WITHOUT_PARAMETERS, descendants

_SEED = (0, "%seed")  # of the generators that weights are drawn by
_UNLIKE = "%unlike"
_CONSTANT = ("Norm", "Norm1d", "Norm2d", "Norm3d", "PReLU")  # modules that begin with the same values everywhere


def seeded(walk: Walk, given: Iterable[Value]) -> None:
    """The generators are seeded with a value that may be another one on each rank."""
    walk.store.set(_SEED, Const(any(_of_each_rank(walk, v) for value in given for _, v in members(value))))


def built(walk: Walk, module: Obj) -> None:
    """A module was built on a real device, by a program whose ranks may draw its weights from seeds of their own."""
    seed = walk.get(_SEED)
    unlike = seed is not None and all(v == Const(True) for _, v in members(seed))
    if walk.building == 0 and unlike and any(map(_draws, descendants(walk, module)[0])):
        _part(walk, module)


def _draws(module: Obj) -> bool:
    """Whether a module of a library begins with weights that it draws; the program's own are seen by what they hold."""
    if not isinstance(module.cls, External):
        return False
    short = module.cls.name.rpartition(".")[2]
    return module.cls.name not in CONTAINERS and short not in WITHOUT_PARAMETERS and not short.endswith(_CONSTANT)


def loaded(walk: Walk, module: Obj) -> None:
    """A module that is not sharded was given a state dict: where some ranks come here only, the others lack it."""
    if any(step.ranks for step in walk.path) and walk.what(module) is What.MODULE and not walk.is_sharded(module):
        _part(walk, module)


def alike(walk: Walk, module: Obj) -> bool | None:
    """False where the ranks have different weights in the module and nothing may have set them since."""
    parted = [module.id] if module.id in walk.parted else [i for i in walk.parted if walk.holds(module, i)]
    before = [v.value for i in parted if isinstance(v := walk.store.get((i, _UNLIKE)), Const)]
    if not before:
        return None
    now = _touched(walk, module)
    return False if any(isinstance(earlier, frozenset) and now <= earlier for earlier in before) else None


def _part(walk: Walk, module: Obj) -> None:
    walk.parted.add(module.id)
    walk.store.set((module.id, _UNLIKE), Const(_touched(walk, module)))


def _touched(walk: Walk, module: Obj) -> frozenset[int]:
    """What around the module may have been given values so far."""
    facts = ("filled", "emptied", "elsewhere")
    return frozenset(
        m.id
        for m in relatives(walk, module)
        if any(walk.fact(m, fact) for fact in facts) or (walk.fact(m, "loaded") and not of_a_resume(walk, m))
    )


def _of_each_rank(walk: Walk, value: Value) -> bool:
    """Whether it is made of the rank in the whole job; ranks of a mesh may share the one that they have in a dim."""
    if not (isinstance(value, Sym) and value.rank):
        return False
    found = set(origins(walk, value))
    return bool(found & {"rank", "environment", "spawned rank"}) and "mesh rank" not in found
