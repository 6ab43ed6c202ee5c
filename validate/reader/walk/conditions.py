"""Conditions: which are decided, which ranks take which side, and what each side tells of the values tested."""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Callable

from ...events import Form, Question
from ...records import record
from ..nodes import last_name
from ..store import Cell
from ..values import (
    Bound,
    Class,
    Const,
    Elements,
    External,
    Function,
    Items,
    Obj,
    Part,
    Path,
    Step,
    Sym,
    Tensors,
    Tuple,
    Union,
    Value,
    What,
    members,
    ranked,
    union,
)
from . import made
from .classes import lineage
from .core import Walk
from .division import on_one_machine

_PROCESSES = re.compile(r"world_?size|\bworld\b|\bws\b|n_?proc|num_(proc|gpu|devices|ranks)|n_?gpu", re.IGNORECASE)
# How programs call whether there are several processes.
_DISTRIBUTED = re.compile(
    r"is_initialized|distributed|is_dist|is_multi|(^|_)ddp$|(^|_)(use|is)_(ddp|fsdp|dist)", re.IGNORECASE
)
_ONE = {
    (ast.Eq, 1, True), (ast.LtE, 1, True), (ast.Lt, 2, True),
    (ast.NotEq, 1, False), (ast.Gt, 1, False), (ast.GtE, 2, False),
}  # fmt: skip
# Comparisons that are told as their opposite, so that one condition has one name.
FLIPPED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.NotEq: ast.Eq, ast.GtE: ast.Lt, ast.LtE: ast.Gt, ast.IsNot: ast.Is, ast.NotIn: ast.In
}  # fmt: skip
_DTENSOR = External("torch.distributed.tensor.DTensor")
OF_DTENSORS = ("full_tensor", "to_local", "redistribute", "placements", "device_mesh", "_local_tensor", "_spec")
Known = tuple[tuple[Cell, Value], ...]
_NEGATED: dict[type[ast.cmpop], str] = {
    ast.Eq: "!=", ast.NotEq: "==", ast.Lt: ">=", ast.GtE: "<", ast.Gt: "<=", ast.LtE: ">",
    ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in",
}  # fmt: skip


@record(frozen=True)
class Test:
    """What is known of a condition. `decided` is None when both sides are possible.

    `yes` and `no` are the branches that the sides take, `known_yes` and `known_no` what holds of cells on them.
    `sieve`: it picks some of the elements that one object stands for, so that both sides happen.
    """

    decided: bool | None
    yes: Path = ()
    no: Path = ()
    known_yes: Known = ()
    known_no: Known = ()
    sieve: bool = False

    def negated(self) -> Test:
        """The test of the opposite."""
        decided = None if self.decided is None else not self.decided
        return Test(decided, self.no, self.yes, self.known_no, self.known_yes, self.sieve)


def test(walk: Walk, node: ast.expr) -> Test:
    """Evaluate a condition."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return test(walk, node.operand).negated()
    if isinstance(node, ast.BoolOp):
        return _combined(walk, node)
    if isinstance(node, ast.Compare) and _compares_with_none(node):
        found = _partition(walk, node.left, walk.evaluate(node.left), lambda v: _is_none(walk, v), ("none",), node)
        return found.negated() if isinstance(node.ops[0], ast.IsNot | ast.NotEq) else found
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "isinstance"
        and len(node.args) == 2
    ):
        return _isinstance(walk, node)
    value = walk.evaluate(node)
    subject = node.target if isinstance(node, ast.NamedExpr) else node
    found = _partition(walk, subject, value, lambda v: truth(walk, v), (), node)
    if found.decided is None and _asks_for_dtensor(node):
        walk.doubts.update(step.condition for step in found.yes)
    return found


def _asks_for_dtensor(node: ast.expr) -> bool:
    """Whether it asks for a method that only distributed tensors have: `hasattr(tensor, "full_tensor")`."""
    names = node.args[1:] if isinstance(node, ast.Call) and last_name(node.func) == "hasattr" else []
    return any(isinstance(name, ast.Constant) and name.value in OF_DTENSORS for name in names)


def _compares_with_none(node: ast.Compare) -> bool:
    operator, other = node.ops[0], node.comparators[0]
    is_equality = len(node.ops) == 1 and isinstance(operator, ast.Is | ast.IsNot | ast.Eq | ast.NotEq)
    return is_equality and isinstance(other, ast.Constant) and other.value is None


def branch(walk: Walk, found: Test, yes: Callable[[], bool], no: Callable[[], bool]) -> bool:
    """Walk what follows a condition that was evaluated; False when neither side comes to its end."""
    if found.sieve:
        fell = [_sieved(walk, found.known_yes, yes), _sieved(walk, found.known_no, no)]
        return any(fell)
    if found.decided is not None:
        for cell, value in found.known_yes if found.decided else found.known_no:
            walk.store.set(cell, value)
        return (yes if found.decided else no)()
    walk.fork([(found.yes, found.known_yes, yes), (found.no, found.known_no, no)])
    return True


def _sieved(walk: Walk, known: Known, side: Callable[[], bool]) -> bool:
    """Walk what is done with the elements that a test picks; the variable stands for all of them again afterwards."""
    before = [walk.store.get(cell) for cell, _ in known]
    for cell, value in known:
        walk.store.set(cell, value)
    falls = _attempt(walk, side)
    for (cell, picked), whole in zip(known, before, strict=True):
        if whole is not None and walk.store.get(cell) is picked:
            walk.store.set(cell, whole)
    return falls


def _attempt(walk: Walk, side: Callable[[], bool]) -> bool:
    from .core import Stop

    try:
        return side()
    except Stop:
        walk.stopped()
        return False


_TRUE = (
    What.MODULE,
    What.OPTIMIZER,
    What.SCHEDULER,
    What.FUTURE,
    What.MESH,
    What.RESPONSE,
    What.GROUP,
    What.OPTIONS,
)


def truth(walk: Walk, value: Value) -> bool | None:
    """Whether a value is true, None where unknown."""
    if isinstance(value, Const):
        return bool(value.value)
    if isinstance(value, Function | Class | Bound | External):
        return True
    if isinstance(value, Tuple):
        return bool(value.items)
    if isinstance(value, Obj):
        content = walk.content(value)
        if isinstance(content, Elements | Items):
            return bool(content.items) if content.exact and value.id not in walk.asked else None
        if value.what in _TRUE or (value.what is What.INSTANCE and isinstance(value.cls, Class)):
            return True
    return None


def _is_none(walk: Walk, value: Value) -> bool | None:
    if isinstance(value, Const):
        return value.value is None
    if isinstance(value, Sym) or (isinstance(value, Obj) and value.what is What.OPAQUE):
        return False if made.is_made(walk, value) else None
    return False


def _partition(
    walk: Walk,
    subject: ast.expr,
    value: Value,
    decide: Callable[[Value], bool | None],
    tag: tuple[str, ...],
    node: ast.expr,
) -> Test:
    """The test of a value of which `decide` tells each member's side."""
    sides = [(path, v, decide(v)) for path, v in members(value)]
    answers = {answer for _, _, answer in sides}
    if answers == {True} or answers == {False}:
        return Test(True in answers)
    yes, no = _steps(walk, value, tag, node)
    if walk.consistent(yes) != walk.consistent(no):  # a branch taken before has decided it
        return Test(walk.consistent(yes))
    if not isinstance(value, Union):
        return Test(None, yes, no)
    true = [(p, v) for p, v, answer in sides if answer is not False]
    false = [(p, v) for p, v, answer in sides if answer is not True]
    if None not in answers:
        if bool(_common(true)) is not bool(_common(false)) and any(s.ranks for p, _ in (*true, *false) for s in p):
            yes, no = _of_ranks(yes, ast.unparse(node)), _of_ranks(no, negation(node))
        yes, no = _guarded(walk, yes, true, false), _guarded(walk, no, false, true)
    cell = cell_of(walk, subject)
    if cell is None:
        return Test(None, yes, no)
    return Test(None, yes, no, ((cell, union(_stripped(true))),), ((cell, union(_stripped(false))),))


def _of_ranks(side: Path, words: str) -> Path:
    """The side of a test as one that some ranks take."""
    return tuple(dataclasses.replace(step, ranks=step.ranks or words) for step in side)


def _guarded(walk: Walk, side: Path, chosen: list[tuple[Path, Value]], others: list[tuple[Path, Value]]) -> Path:
    """The branches that lead to one of the chosen values: theirs where they share some, else the test's own.

    Both where the other values share none, so that the two sides are those of one condition.
    """
    shared = _common(chosen)
    if shared and _common(others):
        return shared
    walk.implications[side[0]] = [path for path, _ in chosen if path]
    for step in shared:
        walk.follows.setdefault(step, set()).add(side[0])
    return (*side, *shared)


def _common(chosen: list[tuple[Path, Value]]) -> Path:
    first = chosen[0][0]
    return tuple(step for step in first if all(step in path for path, _ in chosen))


def _stripped(chosen: list[tuple[Path, Value]]) -> list[tuple[Path, Value]]:
    shared = _common(chosen)
    return [(tuple(s for s in path if s not in shared), v) for path, v in chosen]


def _steps(walk: Walk, value: Value, tag: tuple[str, ...], node: ast.expr) -> tuple[Path, Path]:
    flip = isinstance(value, Sym) and value.flip
    rank = ranked(value) and not tag and not is_alone(walk)
    ranks = {v for _, v in members(value) if isinstance(v, Sym) and v.rank} if rank else set()
    if isinstance(value, Union) and len(ranks) == 1 and all(isinstance(v, Sym | Const) for _, v in members(value)):
        value = ranks.pop()  # a comparison of the rank, or a constant where there is but one: the condition is that
        flip = value.flip
    condition = value.key if isinstance(value, Sym) and not tag else walk.key("if", *tag, _identity(value))
    walk.tests[condition] = (node, walk.frame.file.tree)
    walk.turned[condition] = flip
    words = (ast.unparse(node), negation(node)) if rank else (None, None)
    about = walk.about(value) if walk.asks else None
    if about == "clock" and tag == ("none",) and not any(s.question for path, _ in members(value) for s in path):
        about = None  # whether the clock was read does not depend on what it said
    if about == "files" and any(map(on_one_machine, walk.files())):
        about = None  # all ranks see the same ones
    question = Question(ast.unparse(node), about, walk.at(node)) if about is not None else None
    if rank:
        walk.asked_at[condition] = walk.at(node)
    return (Step(condition, not flip, words[0], question),), (Step(condition, flip, words[1], question),)


def holds_once(walk: Walk) -> bool:
    """Whether two numbers are equal on the way to here, as those of a step and of the last one are in one round."""
    for step in walk.path:
        node = walk.tests[step.condition][0] if step.condition in walk.tests else None
        if not (isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Eq) and step.ranks is None):
            continue
        parts = [*ast.walk(node.left), *ast.walk(node.comparators[0])]
        repeats = any(isinstance(part, ast.Mod) for part in parts)
        sides = (node.left, node.comparators[0])
        is_word = any(isinstance(side, ast.Constant) and isinstance(side.value, str | bool) for side in sides)
        if step.taken != walk.turned[step.condition] and not (repeats or is_word):
            return True
    return False


def is_alone(walk: Walk, path: Path | None = None) -> bool:
    """Whether a branch taken before, or on a path, says that there is but one process, or no group of them."""
    for step in walk.path if path is None else path:
        node = walk.tests[step.condition][0] if step.condition in walk.tests else None
        asked = node.func if isinstance(node, ast.Call) else node
        if isinstance(asked, ast.Name | ast.Attribute):
            if _DISTRIBUTED.search(last_name(asked)) and step.taken == walk.turned[step.condition]:
                return True
        elif isinstance(node, ast.Compare) and len(node.ops) == 1 and _PROCESSES.search(ast.unparse(node.left)):
            operator, number = type(node.ops[0]), node.comparators[0]
            holds = step.taken != walk.turned[step.condition]
            if isinstance(number, ast.Constant) and (operator, number.value, holds) in _ONE:
                return True
    return False


def _identity(value: Value) -> object:
    return value.key if isinstance(value, Sym) else value


def negation(node: ast.expr) -> str:
    """The opposite of a condition, in words."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return ast.unparse(node.operand)
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        return f"{ast.unparse(node.left)} {_NEGATED[type(node.ops[0])]} {ast.unparse(node.comparators[0])}"
    text = ast.unparse(node)
    return f"not {text}" if isinstance(node, ast.Name | ast.Attribute | ast.Call) else f"not ({text})"


def _combined(walk: Walk, node: ast.BoolOp) -> Test:
    """`a and b ...`; `or` is its mirror image."""
    is_and = isinstance(node.op, ast.And)
    yes: Path = ()
    known: Known = ()
    undecided: list[Test] = []
    base, mark = walk.path, walk.store.mark()
    sieve = False
    for operand in node.values:
        part = test(walk, operand) if is_and else test(walk, operand).negated()
        if part.decided is False:
            walk.path = base
            walk.store.rollback(mark)
            return Test(not is_and)
        if part.decided is None:
            undecided.append(part)
            yes += tuple(step for step in part.yes if step not in yes)
            known += part.known_yes
            sieve = sieve or part.sieve
            walk.path = base + tuple(step for step in yes if step not in base)
        for cell, value in part.known_yes:
            walk.store.set(cell, value)
    walk.path = base
    walk.store.rollback(mark)
    if not undecided:
        return Test(is_and)
    if len(undecided) == 1:
        found = undecided[0]
    else:
        whole = walk.key("and", *((s.condition, s.taken) for s in yes))
        found = Test(None, (*yes, Step(whole, True)), (Step(whole, False),), known, (), sieve)
    return found if is_and else found.negated()


def _isinstance(walk: Walk, node: ast.Call) -> Test:
    value, classes = walk.evaluate(node.args[0]), walk.evaluate(node.args[1])
    wanted = classes.items if isinstance(classes, Tuple) else tuple(v for _, v in members(classes))
    found = _partition(
        walk, node.args[0], value, lambda v: _is_instance(walk, v, wanted), ("isinstance", str(hash(wanted))), node
    )
    if found.decided is None and _DTENSOR in wanted:
        walk.doubts.update(step.condition for step in found.yes)
    if found.decided is None and any(isinstance(v, Obj) and v.many for _, v in members(value)):
        return Test(None, known_yes=found.known_yes, known_no=found.known_no, sieve=True)
    return found


def _is_instance(walk: Walk, value: Value, wanted: tuple[Value, ...]) -> bool | None:
    if isinstance(value, Const):
        names = {f"builtins.{c.__name__}" for c in type(value.value).__mro__}
        return any(isinstance(w, External) and w.name in names for w in wanted)
    if isinstance(value, Part) and _DTENSOR in wanted:
        return value.pending
    if isinstance(value, Tensors) and _DTENSOR in wanted:
        return {Form.SHARDED: True, Form.PLAIN: False, Form.FULL: False}.get(value.form)
    if not isinstance(value, Obj) or value.cls is None:
        kinds = {What.DICT: "builtins.dict", What.LIST: "builtins.list"}
        if isinstance(value, Obj) and value.what in kinds:
            return True if External(kinds[value.what]) in wanted else None
        return None
    if any(isinstance(w, External) and w.name.endswith((".FSDPModule", ".FSDP")) for w in wanted):
        return walk.fact(value, "sharded") or None
    classes, complete = lineage(value.cls)
    if any(w in classes for w in wanted):
        return True
    if isinstance(value.cls, External) and all(isinstance(w, Class) for w in wanted):
        return False if value.what is not What.OPAQUE else None
    return False if complete and all(isinstance(w, Class | External) for w in wanted) else None


def cell_of(walk: Walk, node: ast.expr) -> Cell | None:
    """The cell of a variable or attribute, so that a test of it can tell more of its value."""
    if isinstance(node, ast.Name):
        return walk_cell(walk, node.id)
    if isinstance(node, ast.Attribute):
        outer = cell_of(walk, node.value)
        value = walk.get(outer) if outer is not None else None
        if isinstance(value, Obj) and walk.attribute(value, node.attr) is not None:
            return (value.id, "." + node.attr)
    return None


def walk_cell(walk: Walk, name: str) -> Cell | None:
    """The cell that holds the variable `name` here; None when there is none."""
    scope: int | None = walk.frame.outer_names.get(name, walk.frame.scope)
    while scope is not None:
        if walk.store.get((scope, name)) is not None:
            return (scope, name)
        scope = walk.scopes[scope]
    return None
