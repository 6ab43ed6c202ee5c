"""The state of a walk: where it is, what it knows, which branches it took, and the events it has seen."""

from __future__ import annotations

import ast
import dataclasses
import itertools
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from ...events import (
    AsyncSaved,
    Choice,
    Circumstances,
    CollectiveCalled,
    Escaped,
    Event,
    Exited,
    Form,
    GroupCreated,
    GroupInitialised,
    Loaded,
    Location,
    MeshCreated,
    OldPathUsed,
    Ref,
    Saved,
    Sharded,
    TorchApiUsed,
)
from ...trace import Note, Trace
from ..source import Project, SourceFile
from ..store import Cell, Changes, Store
from ..values import (
    NONE,
    Class,
    Const,
    Elements,
    Function,
    Items,
    Obj,
    Path,
    Step,
    Sym,
    Tensors,
    Tuple,
    Union,
    Value,
    What,
    Wrapped,
    members,
    union,
)
from .devices import chosen_out_of_sight
from .division import origins
from .pairing import Pairing, Pending, Unseen

_WAYS = 8  # on which a fact was established: of more, any will do
STATEMENT_LIMIT = 20_000  # statements walked for one program, the functions that are read alone included
FAR_STATEMENT_LIMIT = 1_500  # of them, those of modules that are found from the root of the project alone
FAR_ALONE_LIMIT = 200  # the same for one function that is read alone
ALONE_LIMIT = 3_000  # the same for one function that is read alone
BRANCH_LIMIT = 100  # undecided branches on the way to one place; a training program has some thirty
DEPTH_LIMIT = 30  # calls within calls
REPEAT_LIMIT = 4  # walks of a long function in which nothing happens

_OF_GROUPS = (GroupInitialised, GroupCreated, MeshCreated, Sharded, CollectiveCalled)
_IN_LOOP, _OUTSIDE = Circumstances(loop=True), Circumstances()

N = TypeVar("N", bound=ast.AST)
R = TypeVar("R")
E = TypeVar("E", bound=Event)

EXPRESSIONS: dict[type[ast.AST], Callable[[Walk, Any], Value]] = {}
STATEMENTS: dict[type[ast.AST], Callable[[Walk, Any], bool]] = {}


class Stop(Exception):
    """The walked path ends here: an exception, or the end of the process."""


class Exhausted(Exception):
    """The program is larger than the limits of the walk."""


@dataclass
class End:
    """A way in which a piece of the program ends: under which branches, with what changed, and with what value."""

    path: Path
    changes: Changes
    value: Value | None = None


@dataclass
class Loop:
    """The innermost loop: the ends of its `break` and `continue` statements, relative to `mark`."""

    mark: int
    breaks: list[End] = field(default_factory=list)
    continues: list[End] = field(default_factory=list)


@dataclass
class Frame:
    """A function (or module body) being walked."""

    file: SourceFile
    scope: int
    mark: int
    function: Function | None = None
    owner: Class | None = None
    receiver: Value | None = None
    returns: list[End] = field(default_factory=list)
    yields: list[Value] = field(default_factory=list)
    on_yield: Callable[[Value], None] | None = None  # the body of the `with` that a context manager's function serves
    loop: Loop | None = None
    going_through: Literal["files", "clock"] | None = None  # what each rank found for itself and loops over
    outer_names: dict[str, int] = field(default_factory=dict)  # `global` and `nonlocal`
    base: Path = ()  # the branches that lead to the call


@dataclass
class Cost:
    """What the walks of one function took so far: how many, and how many statements and events in them."""

    walks: int = 0
    statements: int = 0
    events: int = 0

    def spare(self) -> bool:
        """Whether another walk would be costly and, by experience, would show nothing."""
        return self.walks >= REPEAT_LIMIT and self.events == 0 and self.statements > REPEAT_LIMIT * 100


@dataclass
class Seen:
    """What a walk has seen up to some point, apart from what is in its store."""

    pending: list[Pending]
    notes: dict[Note, None]
    left_early: list[tuple[int, Path, int]]
    unseen: list[Unseen]
    escapes: dict[int, tuple[int, Path]]
    at_exit: list[Callable[[], None]]
    holders: dict[int, set[int]]
    modules: dict[int, Obj]


class Walk:
    """One walk through one program."""

    def __init__(self, project: Project, in_entry: bool = True) -> None:
        self.project = project
        self.in_entry = in_entry  # False: a function read alone, whose callers are unknown
        self.store = Store()
        self.path: Path = ()
        self._sided: Path | None = None  # the path that `_side_of` was made of
        self._side_of: dict[int, bool] = {}
        self.frames: list[Frame] = []
        self.loops = 0
        self.serving: frozenset[int] = frozenset()  # conditions on the rank under which a loop without end is run
        self.meta: list[bool | None] = []
        self.in_forward = 0
        self.building = 0
        self.guarded = False  # below an `if __name__ == "__main__"`
        self.scopes: dict[int, int | None] = {}
        self.called_at: dict[int, ast.AST] = {}  # the call that a function's scope was made for
        self.classes: dict[int, Class] = {}
        self.namespaces: dict[str, int] = {}
        self.modules: dict[int, Obj] = {}  # every object that is or may be a module, by identity
        self.holders: dict[int, set[int]] = {}
        self.held: dict[int, set[int]] = {}  # the same, by the holder
        self.established: dict[str, set[int]] = {}  # by fact, of which objects it was established on any way
        self.labels: dict[int, tuple[int | None, str]] = {}
        self.walked: set[ast.AST] = set()
        self.states: dict[
            int, Value
        ] = {}  # what the objects in the dictionary being saved or loaded said of themselves
        self.at_exit: list[Callable[[], None]] = []
        self.caught: list[list[End]] = []
        self.next_yield: Callable[[Value], None] | None = None  # for the function about to be walked
        self._pending: list[Pending] = []
        self.told = 0  # events seen that are no escapes
        self._escapes: dict[int, tuple[int, Path]] = {}  # of an object, the last that was told: when and on which path
        # The functions (scopes) that, or a loop in which, some ranks left early, on which path, and how many events had
        # been seen.
        self.left_early: list[tuple[int, Path, int]] = []
        self.unseen: list[Unseen] = []  # calls that only some ranks make, of what has no source
        self._notes: dict[Note, None] = {}
        self.here: tuple[str, ast.AST] = ("<unknown>", ast.Pass())  # the statement being walked, and its file
        # Of results and lists that each rank got by looking at its files or its clock, by identity, which of the two.
        self.asked: dict[int, Literal["files", "clock"]] = {}
        self._ids = 0
        self._keys: dict[object, int] = {}
        self._parts: dict[int, tuple[object, ...]] = {}
        self.statements, self.limit = 0, STATEMENT_LIMIT
        self.spent = 0  # statements walked before starting over
        self.far = 0  # statements walked of modules that are found from the root of the project alone
        # Where a test asks which of several branches made a value: the branches, any of which implies its outcome.
        self.implications: dict[Step, list[Path]] = {}
        self.follows: dict[Step, set[Step]] = {}  # branches that were taken wherever one of these is
        self.doubts: set[int] = set()  # conditions by which the program asks whether a tensor is distributed
        self.exits = 0  # ends of the program that were walked
        self.captured: set[int] = set()  # scopes that a function or class defined in them still sees
        self.costs: dict[ast.AST, Cost] = {}
        # For `uses`: undecided conditions and their files, the `try` statements whose bodies are being walked, the uses
        # told, the names that the program asked for, and keys of literal dicts.
        self.asks = True  # whether the conditions that are met are questions, on whose answers the ranks must agree
        self.tests: dict[int, tuple[ast.expr, ast.Module]] = {}
        self.asked_at: dict[int, Location] = {}  # where such a condition is that asks for the rank
        self.ways: dict[tuple[int, str], list[Path]] = {}  # the branches on which a fact of an object was established
        self.turned: dict[int, bool] = {}  # whether such a condition holds as it is written where it does not
        self.trying: list[ast.Try] = []
        self.failures: set[int] = set()  # conditions under which a handler is entered
        self.api_uses: set[tuple[ast.AST, str, str | None]] = set()
        self.api_asked: set[str] = set()
        self.literals: dict[int, frozenset[str]] = {}
        # For `folders`: the program has listed one; it has asked of an entry whether something is there.
        self.lists_folders = self.seen_whole = False
        self.turns: set[int] = (
            set()
        )  # conditions by which ranks take turns: each comes to what follows in its own round
        self.underway: list[Ref] = []  # the loaders that are being gone through
        # For `filled`: of a dictionary, the cells that its values were put in from; of a cell, the dictionary, key and
        # value, where a load put another value there.
        self.put_from: dict[int, dict[str, Cell]] = {}
        self.outdated: dict[Cell, tuple[Obj, str, Value]] = {}
        self.parted: set[int] = set()  # for `beginnings`: modules in which ranks had different weights at some time
        self.ties = False  # the program has tied weights
        self.has_parts = False  # for `parts`: a number was made of what this rank holds
        self.among = False  # what is being looked at is one of several things that a value may be

    # --- identities ---

    def fresh(self) -> int:
        """A new identity."""
        self._ids += 1
        return self._ids

    def key(self, *parts: object) -> int:
        """The identity of a computation: equal for equal operations over equal values."""
        known = self._keys.get(parts)
        if known is None:
            known = self._keys[parts] = self.fresh()
            self._parts[known] = parts
        return known

    def parts_of(self, key: int) -> tuple[object, ...]:
        """What a computation was made of."""
        return self._parts.get(key, ())

    def new(self, what: What, cls: Value | None = None, *, many: bool = False, data: Any = None) -> Obj:
        """A new object."""
        return Obj(self.fresh(), what, cls, many, None, data)

    def unknown(self, cls: Value | None = None) -> Obj:
        """An object of which nothing is known but its identity."""
        return self.new(What.OPAQUE, cls)

    def sym(self, *parts: object, rank: bool = False) -> Sym:
        """The result of an operation over values that are not constants; without parts, some new value."""
        made = Sym(self.key(*parts) if parts else self.fresh(), rank)
        if self.asked:
            self.answers(made.key, *parts)
        return made

    def new_list(self, items: Iterable[Value], exact: bool = True) -> Obj:
        """A new list with this content."""
        made = self.new(What.LIST)
        content = Elements(tuple(items), exact)
        self.store.set((made.id, "%items"), content)
        if self.asked and not exact:
            self.answers(made.id, *content.items)
        return made

    def new_dict(self, items: Iterable[tuple[Value, Value]], exact: bool = True) -> Obj:
        """A new dictionary with this content."""
        made = self.new(What.DICT)
        self.store.set((made.id, "%items"), Items(tuple(items), exact))
        return made

    # --- what each rank asks for itself ---

    def answers(self, identity: int, *values: object) -> None:
        """What has this identity follows from these values: where one is an answer, so is it."""
        found = next((about for value in values if (about := self.about(value)) is not None), None)
        if found is not None:
            self.asked[identity] = found

    def about(self, value: object) -> Literal["files", "clock"] | None:
        """What a value is an answer about, None for one that the ranks may have agreed on."""
        if not self.asked:
            return None
        if isinstance(value, Tuple):
            return next((about for item in value.items if (about := self.about(item)) is not None), None)
        if isinstance(value, Union):
            # What was found or else nothing: that it is nothing is the answer.
            nothing = any(v in (NONE, Const(False), Const(-1)) for _, v in value.members)
            known = [
                self.about(v) or next((s.question.about for s in path if nothing and s.question is not None), None)
                for path, v in value.members
            ]
            answers = [about for about, (_, v) in zip(known, value.members, strict=True) if about or v != NONE]
            return answers[0] if answers and None not in answers else None
        if isinstance(value, Sym):
            return self.asked.get(value.key)
        while isinstance(value, Obj):  # what was found in an answer is one
            if value.id in self.asked or value.parent is None:
                return self.asked.get(value.id)
            value = value.parent[0]
        return None

    # --- scopes and cells ---

    @property
    def frame(self) -> Frame:
        """The function being walked."""
        return self.frames[-1]

    def new_scope(self, outer: int | None) -> int:
        """A new set of variables; names that it does not have are looked for in `outer`."""
        scope = self.fresh()
        self.scopes[scope] = outer
        return scope

    def get(self, cell: Cell) -> Value | None:
        """What the cell holds here, without what only other branches put there."""
        value = self.store.get(cell)
        return self.possible(value) if isinstance(value, Union) else value

    def possible(self, value: Union) -> Value:
        """The union without the members that the branches taken rule out."""
        left = [(path, v) for path, v in value.members if self.consistent(path)]
        if len(left) == len(value.members) or not left:
            return value
        sides = self._sides()
        return union([(tuple([s for s in path if sides.get(s.condition) is not s.taken]), v) for path, v in left])

    def consistent(self, steps: Path) -> bool:
        """Whether these branches can be taken together with those taken so far."""
        if not steps:
            return True
        taken = self._sides()
        for step in steps:  # noqa: SIM110 - `all` takes twice as long, and this is asked of every value
            if taken.get(step.condition, step.taken) is not step.taken:
                return False
        return True

    def _sides(self) -> dict[int, bool]:
        """The side taken of each condition on the path, kept as long as the path stays the same."""
        if self._sided is not self.path:
            self._sided, self._side_of = self.path, {s.condition: s.taken for s in self.path}
        return self._side_of

    def attribute(self, obj: Obj, name: str) -> Value | None:
        """What was stored in an attribute of this very object."""
        return self.get((obj.id, "." + name))

    def content(self, obj: Obj) -> Value | None:
        """The content of a list or dictionary."""
        return self.get((obj.id, "%items"))

    def elements(self, obj: Obj) -> Elements | None:
        """The content of a list, None where unknown."""
        value = self.content(obj)
        return value if isinstance(value, Elements) else None

    def items(self, obj: Obj) -> Items | None:
        """The content of a dictionary, None where unknown."""
        value = self.content(obj)
        return value if isinstance(value, Items) else None

    # --- objects by role ---

    def what(self, value: Value | None) -> What | None:
        """What an object is, by construction or by use."""
        if not isinstance(value, Obj):
            return None
        if value.what is What.OPAQUE and isinstance(role := self.store.get((value.id, "%role")), Const):
            return role.value if isinstance(role.value, What) else value.what
        return value.what

    def take_role(self, obj: Obj, what: What) -> None:
        """An unknown object was used as only a `what` can be."""
        if obj.what is What.OPAQUE and self.what(obj) is What.OPAQUE:
            self.store.set((obj.id, "%role"), Const(what))
            if what is What.MODULE:
                self.modules[obj.id] = obj

    def hold(self, outer: Obj, inner: Value) -> None:
        """`outer` has `inner` for a submodule, if both are modules."""
        for _, value in members(inner):
            if isinstance(value, Obj) and value.id != outer.id:
                self.put_into(outer.id, value.id)
                if isinstance(value.data, Wrapped) and self.what(outer) is self.what(value) is What.MODULE:
                    self.establish(outer, "wrapped outside" if value.data.outside else "wrapped")

    def put_into(self, outer: int, inner: int) -> None:
        """What has the identity `outer` holds what has the identity `inner`."""
        self.holders.setdefault(inner, set()).add(outer)
        self.held.setdefault(outer, set()).add(inner)

    def holds(self, outer: Obj, inner: int) -> bool:
        """Whether the module of identity `inner` is in `outer`, at any depth."""
        todo, seen = [inner], {inner}
        while todo:
            for holder in self.holders.get(todo.pop(), ()):
                if holder == outer.id:
                    return True
                if holder not in seen:
                    seen.add(holder)
                    todo.append(holder)
        return False

    def around(self, module: Obj) -> tuple[set[int], set[int]]:
        """The identities of all that holds a module, and of all that it holds, at any depth: of `holds`, every one."""
        return _reached(module.id, self.holders), _reached(module.id, self.held)

    def fact(self, obj: Obj, name: str) -> bool:
        """Whether a fact was established of the object on some way to here."""
        if self.store.get((obj.id, "%" + name)) is None:
            return False
        ways = self.ways.get((obj.id, name), ())
        return not ways or len(ways) > _WAYS or any(map(self.consistent, ways))

    def establish(self, obj: Obj, name: str) -> None:
        """Establish a fact of an object."""
        self.store.set((obj.id, "%" + name), Const(True))
        self.established.setdefault(name, set()).add(obj.id)
        ways = self.ways.setdefault((obj.id, name), [])
        if len(ways) <= _WAYS:
            ways.append(self.path)

    def having(self, name: str) -> list[Obj]:
        """The modules of which a fact was established on some way to here."""
        known = self.established.get(name)
        return [m for m in self.modules.values() if m.id in known and self.fact(m, name)] if known else []

    def is_sharded(self, obj: Obj) -> bool:
        """Whether the module is sharded, or something in it is."""
        if self.fact(obj, "sharded"):
            return True
        return any(self.holds(obj, m.id) for m in self.having("sharded"))

    def form_of(self, obj: Obj) -> Form:
        """How the parameters of a module lie across the ranks at this point."""
        if self.fact(obj, "elsewhere"):  # wrapped by a library that may shard it in its own way
            return Form.UNKNOWN
        if self.is_sharded(obj) or any(self.holds(m, obj.id) for m in self.having("sharded")):
            return Form.SHARDED
        return Form.PLAIN if obj.what is What.MODULE and self.in_entry else Form.UNKNOWN

    # --- names for messages ---

    def label(self, value: Value, text: str, outer: Obj | None = None) -> None:
        """Remember how the program calls an object, the first time that it gets a name."""
        for _, single in members(value):
            if isinstance(single, Obj):
                self.labels.setdefault(single.id, (outer.id if outer else None, text))

    def name(self, obj: Obj) -> str:
        """How the program calls an object, as far as that is known so far."""
        return self._name(obj.id)

    def _name(self, identity: int, depth: int = 0) -> str:
        outer, text = self.labels.get(identity, (None, ""))
        return (self._name(outer, depth + 1) if outer is not None and depth < 8 else "") + text

    def ref(self, obj: Obj) -> Ref:
        """The identity of an object as events carry it; its name is filled in when the walk is over."""
        if obj.parent is not None and obj.id not in self.labels:
            self.labels[obj.id] = (obj.parent[0].id, obj.parent[1] if obj.parent[1][0] == "[" else "." + obj.parent[1])
        cls = getattr(obj.cls, "name", "") or obj.what.value
        return Ref(obj.id, str(cls).rpartition(".")[2], obj.many)

    # --- events ---

    def at(self, node: ast.AST) -> Location:
        """The place of a node of the file being walked."""
        return _place(self.frame.file.name if self.frames else "<unknown>", node)

    def emit(self, cls: type[Event], node: ast.AST, /, **fields: Any) -> None:
        """This happens here."""
        path = self.path
        self.exits += cls is Exited
        self.told += cls not in (Escaped, TorchApiUsed, OldPathUsed)
        when = _IN_LOOP if self.loops else _OUTSIDE
        event = cls(order=len(self._pending), at=self.at(node), when=when, **fields)
        last = next((s for s in reversed(path) if s.ranks is not None), None) if event.collective else None
        calls = sum(last in frame.base for frame in self.frames) if last is not None else 0
        asked = self.asked_at.get(last.condition) if last is not None else None
        self._pending.append(Pending(event, path, self._scopes(), self.loops, self.serving, calls, asked))

    def _scopes(self) -> tuple[int, ...]:
        return tuple([frame.scope for frame in self.frames])

    def call_unseen(self) -> None:
        """Something is called that has no source, perhaps by some ranks only."""
        if any(step.ranks for step in self.path):
            self.unseen.append(Unseen(self.path, self._scopes(), self.seen))

    def escape(self, node: ast.AST, obj: Obj) -> None:
        """The object goes out of sight here; told once for all that happens between two other events."""
        told = self._escapes.get(obj.id)
        if told is not None and told[0] == self.told and self.path[: len(told[1])] == told[1]:
            return
        self._escapes[obj.id] = (self.told, self.path)
        self.emit(Escaped, node, of=self.ref(obj))

    def has_escaped(self, obj: Obj) -> bool:
        """Whether the object went out of sight so far."""
        return obj.id in self._escapes

    def leave_early(self, *, all_functions: bool = False) -> None:
        """The function, or round of a loop, being walked is left here, perhaps by some ranks only.

        With it all that called it, where `all_functions`.
        """
        if any(step.ranks for step in self.path):
            for frame in self.frames if all_functions else self.frames[-1:]:
                self.left_early.append((frame.scope, self.path, self.seen))

    @property
    def seen(self) -> int:
        """How many events were seen so far."""
        return len(self._pending)

    def happened(self, cls: type[Event], since: int) -> bool:
        """Whether an event of this class was seen since `since` events had been."""
        return any(isinstance(pending.event, cls) for pending in self._pending[since:])

    def events(self, cls: type[E], since: int) -> list[E]:
        """The events of this class that were seen since `since` events had been."""
        return [pending.event for pending in self._pending[since:] if isinstance(pending.event, cls)]

    def events_on(self, cls: type[E], since: int) -> list[tuple[E, Path]]:
        """The same, each with the branches that led to it."""
        return [(p.event, p.path) for p in self._pending[since:] if isinstance(p.event, cls)]

    def files(self) -> set[ast.Module]:
        """The files that were read so far, and those whose functions are being walked."""
        return {*self.project.trees(), *(frame.file.tree for frame in self.frames)}

    def handles_failure(self, path: Path) -> bool:
        """Whether a path leads through the handler of an exception."""
        return any(step.condition in self.failures for step in path)

    def tests_on_the_way(self) -> list[tuple[ast.expr, ast.Module]]:
        """The conditions, as they are written and in which file, of the branches taken to get here."""
        return [self.tests[step.condition] for step in self.path if step.condition in self.tests]

    def note(self, node: ast.AST | None, text: str, *, fault: bool = False) -> None:
        """Something here, or at the statement being walked, is not known; `fault`: since the reader failed."""
        self._notes[Note(_place(*self.here) if node is None else self.at(node), text, fault)] = None

    def leave_device(self) -> None:
        """The end of a `with torch.device(...)`."""
        self.meta.pop()

    # --- branches ---

    def fork(self, sides: Sequence[tuple[Path, Sequence[tuple[Cell, Value]], Callable[[], R]]]) -> list[tuple[Path, R]]:
        """Walk each side from the state here and go on with what they have in common.

        A side is the branches that it takes, what is known of some cells on it, and what to do there; it did not come
        to its end when it returns False or raises `Stop`. Returns the results of those that did, each under what tells
        it apart. Raises Stop when none did.
        """
        if len(self.path) > BRANCH_LIMIT:
            self._notes[Note(_place(*self.here), f"more than {BRANCH_LIMIT} undecided branches lead here")] = None
            raise Exhausted
        base, mark, left, taken = self.path, self.store.mark(), self._left(), self._sides()
        ends: list[End] = []
        results: list[R] = []
        through: Path = ()
        checked = True  # each side that did not come to its end raised
        for steps, known, run in sides:
            if not self.consistent(steps):
                continue
            self.path = base + tuple(dict.fromkeys(s for s in steps if taken.get(s.condition) is not s.taken))
            for cell, value in known:
                self.store.set(cell, value)
            try:
                result = run()
                if result is not False:
                    ends.append(End(self.path, self.store.since(mark)))
                    results.append(result)
                    through = steps
            except Stop:
                self.stopped()
            checked = checked and self._left() == left
            self.store.rollback(mark)
            self.path = base
        if not ends:
            raise Stop
        if checked and len(ends) == 1:  # `if rank >= world_size: raise`: whoever goes on is every rank
            ends[0].path = tuple(
                dataclasses.replace(s, ranks=None, question=None) if s in through else s for s in ends[0].path
            )
        before = self.resume(ends)
        return [(end.path[before:], result) for end, result in zip(ends, results, strict=True)]

    def _left(self) -> tuple[int, ...]:
        """How often the function being walked, the loop in it, or the program was left otherwise than by raising."""
        if not self.frames:
            return (self.exits,)
        loop = self.frame.loop
        inside = (len(loop.breaks), len(loop.continues)) if loop is not None else ()
        return (self.exits, len(self.frame.returns), *inside)

    def resume(self, ends: list[End]) -> int:
        """Go on from the state that these ends have in common. Returns how many branches they share."""
        if len(ends) == 1:
            self.path = ends[0].path
            self.store.apply(ends[0].changes)
            return len(self.path)
        shared = _shared([end.path for end in ends])
        self.path = ends[0].path[:shared]
        paths = [end.path[shared:] for end in ends]
        changes = [end.changes for end in ends]
        for cell in dict.fromkeys(itertools.chain.from_iterable(changes)):
            base = self.store.get(cell)
            values = [changed.get(cell, base) for changed in changes]
            first = values[0]
            for value in values:
                if value is not first:
                    known = [(path, v) for path, v in zip(paths, values, strict=True) if v is not None]
                    self.store.set(cell, union(known) if known else None)
                    break
            else:
                self.store.set(cell, first)
        return shared

    def stopped(self) -> None:
        """The path walked ends in an exception, which the innermost `try` may catch."""
        if self.caught:
            self.caught[-1].append(End(self.path, {}))

    @contextmanager
    def restored(self, name: str, value: Any) -> Iterator[None]:
        """Within the `with`, an attribute of this walk has another value."""
        before = getattr(self, name)
        setattr(self, name, value)
        try:
            yield
        finally:
            setattr(self, name, before)

    # --- walking ---

    def evaluate(self, node: ast.expr) -> Value:
        """The value of an expression, with all that happens in it."""
        handler = EXPRESSIONS.get(type(node))
        if handler is None:
            return self.unknown()
        value = handler(self, node)
        return self.possible(value) if isinstance(value, Union) else value

    def execute(self, body: Sequence[ast.stmt]) -> bool:
        """Walk statements; False when their end is not reached."""
        file = self.frames[-1].file
        for statement in body:
            self.statements += 1
            self.far += file.far
            self.here = (file.name, statement)
            if self.statements > self.limit:
                self.note(
                    statement, f"the program is too large: the reader stopped here, after {self.limit} statements"
                )
                raise Exhausted
            handler = STATEMENTS.get(type(statement))
            try:
                if handler is not None and not handler(self, statement):
                    return False
            except Stop:
                self.stopped()
                return False
        return True

    # --- the result ---

    def start_over(self) -> None:
        """Forget the events and circumstances, not what was defined: what follows is a function read alone."""
        self._pending, self._notes, self.path, self.frames = [], {}, (), []
        self.left_early, self.unseen, self._escapes = [], [], {}
        self.loops = self.in_forward = self.building = 0
        self.serving = frozenset()
        self.meta, self.caught, self.at_exit, self.next_yield = [], [], [], None
        self.underway = []
        self.in_entry = False
        self.spent += self.statements
        self.far = min(self.far, FAR_STATEMENT_LIMIT - FAR_ALONE_LIMIT)
        self.statements, self.limit = 0, min(ALONE_LIMIT, max(0, STATEMENT_LIMIT - self.spent))

    def aside(self) -> Seen:
        """What was seen so far, for several continuations that `go_back` to here."""
        holders = {inner: set(outers) for inner, outers in self.holders.items()}
        return Seen(
            list(self._pending), dict(self._notes), list(self.left_early), list(self.unseen), dict(self._escapes),
            list(self.at_exit), holders, dict(self.modules),
        )  # fmt: skip

    def go_back(self, seen: Seen) -> None:
        """Start over with what was seen before; the store's cells are the caller's to roll back."""
        self.start_over()
        self._pending = list(seen.pending)
        self._notes, self.left_early = dict(seen.notes), list(seen.left_early)
        self._escapes, self.at_exit, self.unseen = dict(seen.escapes), list(seen.at_exit), list(seen.unseen)
        self.holders, self.held = {}, {}
        for inner, outers in seen.holders.items():
            for outer in outers:
                self.put_into(outer, inner)
        self.modules = dict(seen.modules)

    def trace(self, ended: bool) -> Trace:
        """All that was seen, without the escapes of objects that no other event mentions."""
        paths = Pairing(self, self._pending).paths
        events = []
        alone = not any(isinstance(p.event, _OF_GROUPS) for p in self._pending)
        mentioned = {ref.id for p in self._pending if not isinstance(p.event, Escaped) for ref in _refs(p.event)}
        known: dict[tuple[int, bool], Circumstances] = {}  # of what lies on the very same path
        for pending, path in zip(self._pending, paths, strict=True):
            event = pending.event
            if isinstance(event, Escaped) and event.of.id not in mentioned:
                continue
            key = (id(path), event.when.loop)
            if key not in known:
                known[key] = self._circumstances(path, event.when)
            if isinstance(event, GroupInitialised) and chosen_out_of_sight(self, pending.path):
                event = dataclasses.replace(event, device_bound=True)
            when = known[key]
            if alone and isinstance(event, Saved | AsyncSaved | Loaded) and self._by_environment(path):
                when = dataclasses.replace(when, only=None)  # where no group was made, DCP works in one process alone
            if when.only is not None and pending.asked is not None:
                when = dataclasses.replace(when, asked=pending.asked)
            events.append(dataclasses.replace(event, when=when, **self._renamed(event)))
        return Trace("reader", tuple(events), self._holders_of(mentioned), tuple(self._notes), ended)

    def _by_environment(self, path: Path) -> bool:
        """Whether the ranks are told by variables of their environment, which are there without a process group."""
        conditions = (Sym(step.condition, rank=True) for step in path if step.ranks)
        return all(set(origins(self, condition)) == {"environment"} for condition in conditions)

    def _circumstances(self, path: Path, when: Circumstances) -> Circumstances:
        from .conditions import is_alone

        of_ranks = dict.fromkeys(s.ranks for s in path if s.ranks)
        only = " and ".join(of_ranks) if of_ranks and not is_alone(self, path) else None
        choices = tuple(Choice(s.condition, s.taken, s.question) for s in self._needed(path) if s.ranks is None)
        return dataclasses.replace(when, only=only, path=choices)

    def _holders_of(self, modules: set[int]) -> dict[int, frozenset[int]]:
        """What holds these modules, at any depth."""
        found: dict[int, frozenset[int]] = {}
        todo = list(modules)
        while todo:
            inner = todo.pop()
            if inner not in found and inner in self.holders:
                found[inner] = frozenset(self.holders[inner])
                todo += found[inner]
        return found

    def _needed(self, path: Path) -> Path:
        """The branches without those that follow from the others."""
        taken = set(path)
        return tuple(
            step for step in path if not any(taken.issuperset(guard) for guard in self.implications.get(step, ()))
        )

    def _named(self, record: Any) -> Any:
        """What an event tells, with the names that its objects got later; itself where they have them."""
        if isinstance(record, Ref):
            name = self._name(record.id) or record.name
            return record if name == record.name else dataclasses.replace(record, name=name)
        if isinstance(record, tuple):
            made = tuple(map(self._named, record))
            return record if all(map(operator.is_, made, record)) else made
        changed = self._renamed(record)
        return dataclasses.replace(record, **changed) if changed else record

    def _renamed(self, record: Any) -> dict[str, Any]:
        """The fields of an event, or of a part of one, in which objects got another name later, as they are then."""
        return {
            name: new
            for name in _mentioning(type(record))
            if (new := self._named(old := getattr(record, name))) is not old
        }


def _reached(start: int, leads: Mapping[int, Iterable[int]]) -> set[int]:
    """What is reached from `start`, which is only among it where a way leads back."""
    todo, found = [start], set[int]()
    while todo:
        for next_ in leads.get(todo.pop(), ()):
            if next_ not in found:
                found.add(next_)
                todo.append(next_)
    return found


def _shared(paths: Sequence[Path]) -> int:
    """How many branches all the paths begin with."""
    first, *others = paths
    shared = min(map(len, paths))
    for other in others:
        for position in range(shared):
            if other[position] != first[position]:
                shared = position
                break
    return shared


def _place(file: str, node: ast.AST) -> Location:
    return Location(file, getattr(node, "lineno", 1), getattr(node, "col_offset", 0) + 1)


def _refs(record: object) -> Iterator[Ref]:
    """The objects that an event mentions."""
    if isinstance(record, Ref):
        yield record
    elif isinstance(record, tuple):
        for item in record:
            yield from _refs(item)
    else:
        for name in _mentioning(type(record)):
            yield from _refs(getattr(record, name))


_MENTIONING: dict[type, tuple[str, ...]] = {}


def _mentioning(cls: type) -> tuple[str, ...]:
    """The fields of an event, or of a part of one, that may mention objects; none of anything else."""
    if cls not in _MENTIONING:
        is_part = dataclasses.is_dataclass(cls) and not issubclass(cls, Ref | Location | Circumstances)
        names = (f.name for f in dataclasses.fields(cls)) if is_part else ()
        _MENTIONING[cls] = tuple(name for name in names if name not in ("order", "at", "when"))
    return _MENTIONING[cls]


def expression(*kinds: type[ast.expr]) -> Callable[[Callable[[Walk, N], Value]], Callable[[Walk, N], Value]]:
    """Register how expressions of these kinds are evaluated."""

    def register(handler: Callable[[Walk, N], Value]) -> Callable[[Walk, N], Value]:
        EXPRESSIONS.update(dict.fromkeys(kinds, handler))
        return handler

    return register


def statement(*kinds: type[ast.stmt]) -> Callable[[Callable[[Walk, N], bool]], Callable[[Walk, N], bool]]:
    """Register how a statement is walked; the handler returns False when the next one is not reached."""

    def register(handler: Callable[[Walk, N], bool]) -> Callable[[Walk, N], bool]:
        STATEMENTS.update(dict.fromkeys(kinds, handler))
        return handler

    return register


def owners(value: Value, walk: Walk) -> list[Obj]:
    """The objects whose tensors `value` consists of, at any depth of lists and dictionaries."""
    found: dict[int, Obj] = {}
    todo, seen = [value], set[int]()
    while todo:
        for _, single in members(todo.pop()):
            if isinstance(single, Tensors):
                found.update({o.id: o for o in single.of})
            elif isinstance(single, Obj) and single.id not in seen:
                seen.add(single.id)
                todo += parts(walk, single)
            elif isinstance(single, Tuple):
                todo += single.items
    return list(found.values())


def parts(walk: Walk, obj: Obj) -> list[Value]:
    """The elements of a list and the values of a dictionary."""
    content = walk.content(obj)
    if isinstance(content, Elements):
        return list(content.items)
    if isinstance(content, Items):
        return [value for _, value in content.items]
    return []
