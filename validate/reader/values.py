"""What the reader knows of a value of the program that it reads.

Values are immutable and compare by what is known of them. Whatever can change (attributes, variables, the content of a
list) is kept in the `Store` under the identity of the `Obj` that owns it, so that both sides of a branch can be walked
from one state.
"""

from __future__ import annotations

import ast
import enum
from collections.abc import Iterator, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING

from ..events import Form, Kind, Precision, Question, Via
from ..records import record

if TYPE_CHECKING:
    from .source import SourceFile


@record(frozen=True, slots=True, eq=False)
class Step:
    """One side taken of a condition that could not be evaluated.

    `ranks` says in words which ranks take it; None when the condition is the same on every rank. `question`: what each
    rank asks for itself to decide it.
    """

    condition: int
    taken: bool
    ranks: str | None = None
    question: Question | None = None

    # Paths are compared and looked through all the time; what a dataclass does to compare two fields takes far longer.
    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, Step) and self.condition == other.condition and self.taken is other.taken
        )

    def __hash__(self) -> int:
        return self.condition * 2 + self.taken


Path = tuple[Step, ...]


def without_ranks(path: Path) -> Path:
    """The same branches, as ones that every rank comes through."""
    return tuple(replace(step, ranks=None) for step in path)


class Value:
    """Anything an expression can evaluate to."""

    __slots__ = ()


class Const(Value):
    """A Python constant. Unlike in Python, `True`, `1` and `1.0` are three constants."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Const) and type(self.value) is type(other.value) and self.value == other.value

    def __hash__(self) -> int:
        return hash((type(self.value), self.value))


NONE = Const(None)


@record(frozen=True, slots=True, eq=False)
class Sym(Value):
    """The result of a computation that could not be carried out; those of equal `key` are equal.

    `rank`: it differs from rank to rank. `flip`: it is the negation of the condition `key`.
    """

    key: int
    rank: bool = False
    flip: bool = False

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, Sym) and self.key == other.key and self.rank is other.rank and self.flip is other.flip
        )

    def __hash__(self) -> int:
        return self.key * 4 + self.rank * 2 + self.flip


@record(frozen=True, slots=True, eq=False)
class External(Value):
    """Something of a library, by its canonical dotted name (`torch.optim.AdamW`, `builtins.len`)."""

    name: str

    def __eq__(self, other: object) -> bool:
        return isinstance(other, External) and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)


@record(frozen=True, slots=True)
class Namespace(Value):
    """A module of the project; its names are the variables of `scope`."""

    scope: int
    name: str
    file: SourceFile = field(compare=False)


@record(frozen=True, slots=True)
class Function(Value):
    """A function of the project, with the scope that it was defined in."""

    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
    scope: int
    file: SourceFile = field(compare=False)
    name: str = field(compare=False)
    defaults: tuple[tuple[str, Value], ...] = field(default=(), compare=False)
    owner: int | None = field(default=None, compare=False)  # the class (its scope) that it is a method of
    flavor: str = field(default="", compare=False)  # property, cached, staticmethod, classmethod, contextmanager


@record(frozen=True, slots=True)
class Class(Value):
    """A class of the project; what its body defines are the variables of `scope`."""

    scope: int
    name: str = field(compare=False)
    bases: tuple[Value, ...] = field(compare=False)
    node: ast.ClassDef = field(compare=False)
    dataclass: bool = field(default=False, compare=False)


class What(enum.Enum):
    """What an object is, as far as the contract is concerned."""

    OPAQUE = "unknown"
    MODULE = "module"
    OPTIMIZER = "optimizer"
    SCHEDULER = "scheduler"
    LOADER = "loader"
    FUTURE = "future"
    RESPONSE = "response"  # of an asynchronous save: holds futures
    MESH = "mesh"
    GROUP = "group"
    DEVICE = "device"
    DICT = "dict"
    LIST = "list"
    INSTANCE = "instance"
    STATE = "state"
    OPTIONS = "options"


@record(frozen=True, slots=True, eq=False)
class Obj(Value):
    """An object with an identity.

    `cls` is its class where known; `many`: it stands for each element of a collection; `parent`: the object and the
    attribute (or `[*]`) that an unknown object was found at. A module and what `torch.compile` made of it are equal.
    """

    id: int
    what: What
    cls: Value | None = None
    many: bool = False
    parent: tuple[Obj, str] | None = None
    data: StateData | OptionsData | Precision | Wrapped | str | None = None

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Obj) and self.id == other.id)

    def __hash__(self) -> int:
        return self.id

    def found_in(self) -> Iterator[Obj]:
        """The object, what it was found in, what that was found in, and so on."""
        at: Obj | None = self
        while at is not None:
            yield at
            at = at.parent[0] if at.parent is not None else None


@record(frozen=True, slots=True)
class StateData:
    """How a state dict came about; `by_rank`: its keys differ from rank to rank."""

    of: tuple[Obj, ...]
    kind: Kind
    form: Form
    via: Via
    full: bool | None = False
    offload: bool | None = False
    aliased: bool | None = None
    by_rank: bool = False
    prefix: str | None = None


@record(frozen=True, slots=True)
class Wrapped:
    """That an object is a module as `torch.compile` returned it, and not as it was given to it.

    `outside`: a wrapper for activation checkpointing was put around that.
    """

    outside: bool = False


@record(frozen=True, slots=True)
class OptionsData:
    """A `StateDictOptions`; None where the value is not known."""

    full: bool | None = False
    offload: bool | None = False
    broadcast: bool | None = False
    strict: bool | None = True


@record(frozen=True, slots=True)
class Tensors(Value):
    """Tensors that belong to objects: parameters, or values of their state dict."""

    of: tuple[Obj, ...]
    kind: Kind
    form: Form
    via: Via = Via.VALUE


@record(frozen=True, slots=True)
class Part(Value):
    """A number made of what this rank holds of sharded tensors, and not of the whole.

    `pending`: a DTensor that knows of it, so that any operation but adding (where it `adds`) completes it; else a plain
    number. `of`: the identities of what it was made from.
    """

    of: tuple[int, ...]
    pending: bool
    adds: bool = False


@record(frozen=True, slots=True)
class RngState(Value):
    """The state of a random number generator of this process; `made`: of one that the program made for itself."""

    made: bool = False


@record(frozen=True, slots=True)
class Tuple(Value):
    """A tuple whose elements are known one by one."""

    items: tuple[Value, ...]


@record(frozen=True, slots=True)
class Elements(Value):
    """The content of a list or set; `exact` when these are all its elements, in order."""

    items: tuple[Value, ...]
    exact: bool


@record(frozen=True, slots=True)
class Items(Value):
    """The content of a dictionary; `exact` when it has no other keys."""

    items: tuple[tuple[Value, Value], ...]
    exact: bool


@record(frozen=True, slots=True)
class Bound(Value):
    """A method of the project with its receiver."""

    receiver: Value
    function: Function


@record(frozen=True, slots=True)
class Method(Value):
    """A method without source."""

    receiver: Value
    name: str


@record(frozen=True, slots=True)
class Partial(Value):
    """`functools.partial`."""

    function: Value
    args: tuple[Value, ...]
    kwargs: tuple[tuple[str, Value], ...]


@record(frozen=True, slots=True)
class Super(Value):
    """`super()` in a method of `owner`."""

    owner: Class
    receiver: Value


@record(frozen=True, slots=True)
class Union(Value):
    """One of several values, each under the branches that lead to it."""

    members: tuple[tuple[Path, Value], ...]


_UNION_LIMIT = 12


def union(members: Sequence[tuple[Path, Value]]) -> Value:
    """The value that is one of `members`. More than a dozen are cut off; any way may then lead to any of the others."""
    if len(members) == 1 and not isinstance(members[0][1], Union):
        return members[0][1]
    merged: dict[Value, Path] = {}
    for guard, value in members:
        if not isinstance(value, Union):
            known = merged.get(value)
            merged[value] = guard if known is None else _either(known, guard)
            continue
        taken = frozenset(guard)
        for within, single in value.members:
            path = guard + tuple([step for step in within if step not in taken]) if guard else within
            known = merged.get(single)
            merged[single] = path if known is None else _either(known, path)
    if len(merged) == 1:
        return next(iter(merged))
    values = list(merged)
    if not values or isinstance(values[0], Items | Elements):  # mostly not: nothing to look through
        if all(isinstance(v, Items) for v in values):
            return _merge_items([(merged[v], v) for v in values if isinstance(v, Items)])
        if all(isinstance(v, Elements) for v in values):
            items = dict.fromkeys(item for v in values if isinstance(v, Elements) for item in v.items)
            return Elements(tuple(items)[:_UNION_LIMIT], exact=False)
    if len(merged) > _UNION_LIMIT:
        return Union(tuple(((), value) for value in values[:_UNION_LIMIT]))
    return Union(tuple((path, value) for value, path in merged.items()))


def _either(one: Path, other: Path) -> Path:
    if not one or not other:
        return ()
    shared = frozenset(other)  # in a long function a path has hundreds of steps
    return tuple([step for step in one if step in shared])


def _merge_items(members: list[tuple[Path, Items]]) -> Items:
    by_key: dict[Value, list[tuple[Path, Value]]] = {}
    for path, content in members:
        for key, value in content.items:
            by_key.setdefault(key, []).append((path, value))
    return Items(tuple((key, union(values)) for key, values in by_key.items()), all(c.exact for _, c in members))


def members(value: Value) -> tuple[tuple[Path, Value], ...]:
    """The values that `value` may be, each under the branches that lead to it."""
    return value.members if isinstance(value, Union) else (((), value),)


def identity(value: Obj | Sym) -> int:
    """What tells it from any other value; under it, the store keeps what is known of the value."""
    return value.id if isinstance(value, Obj) else value.key


def single(value: Value | None) -> object:
    """The Python constant that `value` is; None when it is not a constant."""
    return value.value if isinstance(value, Const) else None


def ranked(value: Value | None) -> bool:
    """Whether it was computed, and differs from rank to rank."""
    if isinstance(value, Union):
        return any(isinstance(v, Sym) and v.rank for _, v in value.members)
    return isinstance(value, Sym) and value.rank
