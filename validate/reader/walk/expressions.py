"""The value of each kind of expression."""

from __future__ import annotations

import ast
import builtins
import contextlib
import operator
import re
from collections.abc import Callable
from typing import Any

from ...events import DividedByRank, Form, Kind
from ..values import (
    NONE,
    Class,
    Const,
    Elements,
    External,
    Items,
    Obj,
    OptionsData,
    Path,
    RngState,
    StateData,
    Sym,
    Tensors,
    Tuple,
    Value,
    What,
    members,
    ranked,
    single,
    union,
    without_ranks,
)
from . import calls, division, filled, made, masked, unequal
from .assignment import assign
from .conditions import FLIPPED, test, truth
from .core import Walk, expression
from .folders import kept_in_list
from .lookup import attribute
from .loops import iterate
from .parts import operated, scaled
from .prefixes import named_by
from .reduced import carry

_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.BitOr: operator.or_, ast.BitAnd: operator.and_,
}  # fmt: skip
_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.GtE: operator.ge, ast.Gt: operator.gt,
    ast.LtE: operator.le,
}  # fmt: skip
_COMPREHENDED = 8  # elements of a known list for which a comprehension is evaluated one by one


@expression(ast.Constant)
def _constant(_: Walk, node: ast.Constant) -> Value:
    return Const(node.value)


@expression(ast.Name)
def _name(walk: Walk, node: ast.Name) -> Value:
    frame = walk.frames[-1]
    scope: int | None = frame.outer_names.get(node.id, frame.scope)
    while scope is not None:
        cell = (scope, node.id)
        if (value := walk.store.get(cell)) is not None:
            if cell in walk.outdated:
                filled.variable_read(walk, cell, node)
            if value == NONE and made.set_elsewhere(walk, scope, node.id):
                return walk.sym("set elsewhere", scope, node.id)
            return value
        scope = walk.scopes[scope]
    if hasattr(builtins, node.id):
        return External("builtins." + node.id)
    return walk.unknown()


@expression(ast.Attribute)
def _attribute(walk: Walk, node: ast.Attribute) -> Value:
    return attribute(walk, walk.evaluate(node.value), node.attr, node)


@expression(ast.Call)
def _call(walk: Walk, node: ast.Call) -> Value:
    return calls.call_expression(walk, node)


@expression(ast.NamedExpr)
def _named(walk: Walk, node: ast.NamedExpr) -> Value:
    value = walk.evaluate(node.value)
    assign(walk, node.target, value)
    return value


@expression(ast.Tuple)
def _tuple(walk: Walk, node: ast.Tuple) -> Value:
    if any(isinstance(element, ast.Starred) for element in node.elts):
        return _list(walk, node)
    return Tuple(tuple(walk.evaluate(element) for element in node.elts))


@expression(ast.List, ast.Set)
def _list(walk: Walk, node: ast.List | ast.Set | ast.Tuple) -> Value:
    items: list[Value] = []
    exact = True
    for element in node.elts:
        if isinstance(element, ast.Starred):
            found = iterate(walk, walk.evaluate(element.value))
            items += found.values
            exact = exact and found.exact
        else:
            items.append(walk.evaluate(element))
    kept_in_list(walk, items)
    return walk.new_list(items, exact)


@expression(ast.Dict)
def _dict(walk: Walk, node: ast.Dict) -> Value:
    items: dict[Value, Value] = {}
    exact = True
    for key, value in zip(node.keys, node.values, strict=True):
        if key is not None:
            items[walk.evaluate(key)] = walk.evaluate(value)
            continue
        merged = walk.evaluate(value)
        content = walk.items(merged) if isinstance(merged, Obj) else None
        is_state = isinstance(merged, Obj) and isinstance(merged.data, StateData)
        exact = exact and (is_state or (content is not None and content.exact))
        items.update(content.items if content is not None else ((walk.sym(), merged),))
    made = walk.new_dict(items.items(), exact)
    for key, value in zip(node.keys, node.values, strict=True):
        filled.put(walk, made, key.value if isinstance(key, ast.Constant) else None, value)
    walk.literals[made.id] = frozenset(
        k.value for k in node.keys if isinstance(k, ast.Constant) and isinstance(k.value, str)
    )
    return made


@expression(ast.Lambda)
def _lambda(walk: Walk, node: ast.Lambda) -> Value:
    return calls.define(walk, node)


@expression(ast.IfExp)
def _if_expression(walk: Walk, node: ast.IfExp) -> Value:
    found = test(walk, node.test)
    if found.decided is not None:
        return walk.evaluate(node.body if found.decided else node.orelse)

    def yes() -> Value:
        return walk.evaluate(node.body)

    def no() -> Value:
        return walk.evaluate(node.orelse)

    if found.sieve:
        return union([((), yes()), ((), no())])
    return union(walk.fork([(found.yes, found.known_yes, yes), (found.no, found.known_no, no)]))


@expression(ast.BoolOp)
def _bool(walk: Walk, node: ast.BoolOp) -> Value:
    """`a or b` as a value: each operand that may be the result."""
    is_and = isinstance(node.op, ast.And)
    results: list[tuple[Path, Value]] = []
    rank = False
    for position, operand in enumerate(node.values):
        value = walk.evaluate(operand)
        last = position == len(node.values) - 1
        kept = [(p, v) for p, v in members(value) if last or truth(walk, v) is not is_and]
        results += kept
        rank = rank or any(isinstance(v, Sym) and v.rank for _, v in kept)
        if kept and all(truth(walk, v) is (not is_and) for _, v in members(value)):
            break
    # What is unknown is a condition, too, where the others ask for the rank.
    plain = all(
        isinstance(v, Sym | Const) or (rank and isinstance(v, Obj) and v.what is What.OPAQUE) for _, v in results
    )
    if len(results) > 1 and plain:
        return walk.sym("and" if is_and else "or", *(v for _, v in results), rank=rank)
    return union(results)


@expression(ast.UnaryOp)
def _unary(walk: Walk, node: ast.UnaryOp) -> Value:
    if isinstance(node.op, ast.Not):
        value = walk.evaluate(node.operand)
        known = {truth(walk, v) for _, v in members(value)}
        if len(known) == 1 and None not in known:
            return Const(not known.pop())
        if isinstance(value, Sym):
            return Sym(value.key, value.rank, not value.flip)
        return walk.sym("not", value, rank=ranked(value))
    value = walk.evaluate(node.operand)
    constant = single(value)
    if isinstance(constant, int | float) and isinstance(node.op, ast.USub):
        return Const(-constant)
    return walk.sym(type(node.op).__name__, value, rank=isinstance(value, Sym) and value.rank)


@expression(ast.BinOp)
def _binary(walk: Walk, node: ast.BinOp) -> Value:
    left, right = walk.evaluate(node.left), walk.evaluate(node.right)
    if isinstance(node.op, ast.Mult | ast.Div):
        scaled(walk, left, right, node)
        scaled(walk, right, left, node)
    made = binary(walk, node.op, left, right)
    masked.carry(walk, node.op, (node.left, node.right), left, right, made)
    return made


def binary(walk: Walk, op: ast.operator, left: Value, right: Value) -> Value:
    """The value of a binary operation."""
    if _computable(op, left, right) and isinstance(left, Const) and isinstance(right, Const):
        with contextlib.suppress(TypeError, ValueError, ArithmeticError):
            return Const(_BINARY[type(op)](left.value, right.value))
    if isinstance(op, ast.Mod) and isinstance(left, Sym) and right == Const(1):
        return Const(0)  # each round is one: `(step + 1) % accumulation_steps == 0`
    if isinstance(op, ast.Add) and isinstance(left, Tuple) and isinstance(right, Tuple):
        return Tuple(left.items + right.items)
    if isinstance(op, ast.Add | ast.BitOr) and isinstance(left, Obj) and isinstance(right, Obj):
        one, other = walk.content(left), walk.content(right)
        if isinstance(one, Elements) and isinstance(other, Elements):
            return walk.new_list(one.items + other.items, one.exact and other.exact)
        if isinstance(one, Items) and isinstance(other, Items):
            return walk.new_dict({**dict(one.items), **dict(other.items)}.items(), one.exact and other.exact)
    if isinstance(op, ast.Mult) and isinstance(left, Obj) and (repeated := walk.elements(left)) is not None:
        return walk.new_list(repeated.items, exact=False)
    for value, other in ((left, right), (right, left)):
        if isinstance(value, Tensors):  # with a constant, an operation on each element
            return Tensors(value.of, value.kind, value.form if isinstance(other, Const) else Form.UNKNOWN)
    if (made := operated(walk, op, left, right)) is not None:
        return made
    return carry(
        walk, op, left, right, walk.sym("op", type(op).__name__, left, right, rank=ranked(left) or ranked(right))
    )


def _computable(op: ast.operator, left: Value, right: Value) -> bool:
    """Whether both are small constants of the kinds that programs configure themselves with."""
    constants = [single(left), single(right)]
    is_text = any(isinstance(c, str) for c in constants)
    small = all(isinstance(c, int | float | str) and len(str(c)) < 200 for c in constants)
    return small and type(op) in _BINARY and not (is_text and not isinstance(op, ast.Add))


@expression(ast.Compare)
def _compare(walk: Walk, node: ast.Compare) -> Value:
    values = [walk.evaluate(node.left), *(walk.evaluate(c) for c in node.comparators)]
    if len(node.ops) > 1:
        return walk.sym("compare", *(type(op).__name__ for op in node.ops), *values, rank=any(map(ranked, values)))
    op, left, right = _in_few_words(walk, node.ops[0], *values)
    if isinstance(left, Const) and isinstance(right, Const):
        if type(op) in _COMPARE:
            with contextlib.suppress(TypeError):
                return Const(bool(_COMPARE[type(op)](left.value, right.value)))
        if isinstance(op, ast.Is | ast.IsNot) and (left.value is None or right.value is None or left == right):
            return Const((left == right) is isinstance(op, ast.Is))
    if isinstance(op, ast.Eq | ast.NotEq) and _is_above(walk, left, right):
        return Const(isinstance(op, ast.NotEq))
    if isinstance(op, ast.Is | ast.IsNot) and (same := _same_module(walk, left, right)) is not None:
        return Const(same is isinstance(op, ast.Is))
    if isinstance(op, ast.In | ast.NotIn) and (found := _contained(walk, left, right)) is not None:
        return Const(found is isinstance(op, ast.In))
    rank = _rank_comparison(left, op, right) and not isinstance(op, ast.Is | ast.IsNot)
    rank = rank and not _may_be_its_own(walk, (node.left, left), (node.comparators[0], right))
    base = FLIPPED.get(type(op), type(op))
    if rank and walk.loops and _takes_turns(node, left, right):
        walk.emit(DividedByRank, node)
        rank = False
        walk.turns.add(walk.sym("compare", base.__name__, left, _constants(walk, right)).key)
    made = walk.sym("compare", base.__name__, left, _constants(walk, right), rank=rank)
    return Sym(made.key, rank, flip=base is not type(op))


def _in_few_words(walk: Walk, op: ast.cmpop, left: Value, right: Value) -> tuple[ast.cmpop, Value, Value]:
    """A comparison as it is, unless it is another way to ask whether a rank is the first, or the only one.

    Ranks count from 0; a program that writes -1 beside it means a process that is alone. There is one rank at least.
    """
    if _counts_all(left) and isinstance(right, Const) and (type(op), right.value) in _ALONE:
        return _ALONE[type(op), right.value](), left, Const(1)
    if ranked(left) and isinstance(op, ast.In | ast.NotIn):
        among = _constants(walk, right)
        if isinstance(among, Tuple) and {*among.items} in ({Const(-1), Const(0)}, {Const(0)}):
            return _FIRST_AMONG[type(op)](), left, Const(0)
    if ranked(right) and isinstance(left, Const) and type(op) in _MIRRORED:
        op, left, right = _MIRRORED[type(op)](), right, left
    if ranked(left) and isinstance(right, Const) and (found := _FIRST.get((type(op), right.value))) is not None:
        return found(), left, Const(0)
    return op, left, right


_MIRRORED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.Gt, ast.Gt: ast.Lt, ast.LtE: ast.GtE, ast.GtE: ast.LtE, ast.Eq: ast.Eq, ast.NotEq: ast.NotEq
}  # fmt: skip
_FIRST: dict[tuple[type[ast.cmpop], object], type[ast.cmpop]] = {
    (ast.Gt, 0): ast.NotEq, (ast.GtE, 1): ast.NotEq, (ast.LtE, 0): ast.Eq, (ast.Lt, 1): ast.Eq
}  # fmt: skip
_ALONE: dict[tuple[type[ast.cmpop], object], type[ast.cmpop]] = {
    (ast.Gt, 1): ast.NotEq, (ast.GtE, 2): ast.NotEq, (ast.LtE, 1): ast.Eq, (ast.Lt, 2): ast.Eq
}  # fmt: skip
_FIRST_AMONG: dict[type[ast.cmpop], type[ast.cmpop]] = {ast.In: ast.Eq, ast.NotIn: ast.NotEq}


def _is_above(walk: Walk, left: Value, right: Value) -> bool:
    """Whether one of two is an index of a `range`, and the other where that ends, which it never reaches."""
    return any(
        isinstance(index, Sym) and walk.store.get((index.key, "%below")) == end
        for index, end in ((left, right), (right, left))
    )


def _same_module(walk: Walk, left: Value, right: Value) -> bool | None:
    """Whether two modules that the program has built are one; None where that is not known."""
    if not (isinstance(left, Obj) and isinstance(right, Obj) and left.id in walk.modules and right.id in walk.modules):
        return None
    if left.id == right.id:
        return None if left.many else True
    return False if isinstance(left.cls, Class | External) and isinstance(right.cls, Class | External) else None


def _constants(walk: Walk, value: Value) -> Value:
    """The constants that a list or set holds: wherever the program writes them down again, they are the same."""
    content = walk.elements(value) if isinstance(value, Obj) else None
    known = content is not None and content.exact and all(isinstance(item, Const) for item in content.items)
    return Tuple(content.items) if content is not None and known else value


def _takes_turns(node: ast.Compare, left: Value, right: Value) -> bool:
    """`number % world_size == rank`: each rank comes to what follows, in a round of its own."""
    sides = ((node.left, left, right), (node.comparators[0], right, left))
    return any(
        isinstance(side, ast.BinOp) and isinstance(side.op, ast.Mod) and ranked(other) and not ranked(value)
        for side, value, other in sides
    )


def _contained(walk: Walk, element: Value, container: Value) -> bool | None:
    if not isinstance(element, Const):
        return None
    items: tuple[Value, ...] | None = container.items if isinstance(container, Tuple) else None
    if (
        isinstance(container, Obj)
        and isinstance(content := walk.content(container), Elements | Items)
        and content.exact
    ):
        items = content.items if isinstance(content, Elements) else tuple(key for key, _ in content.items)
    if isinstance(container, Const) and isinstance(container.value, str) and isinstance(element.value, str):
        return element.value in container.value
    if items is None:
        return None
    if element in items:
        return True
    return False if all(isinstance(item, Const) for item in items) else None


def _rank_comparison(left: Value, op: ast.cmpop, right: Value) -> bool:
    """Whether the ranks differ in the answer.

    Comparing with -1 or a word, or asking whether a rank is negative, asks whether there are ranks at all. Where ranks
    are held against the number of them or of their devices, the job has been started as it should, or is given up.
    """
    if isinstance(op, ast.Lt | ast.LtE | ast.Gt | ast.GtE) and any(map(_counts_all, (left, right))):
        return False
    if ranked(left) and ranked(right):  # two numbers of each rank's own may be one on all of them
        return False
    below = ((left, right, ast.Lt | ast.GtE), (right, left, ast.Gt | ast.LtE))
    for one, other, asks_for_sign in below:
        if ranked(one):
            value = single(other)
            is_check = value == -1 or (value == 0 and isinstance(op, asks_for_sign))
            return not (is_check or (isinstance(value, str) and not value.isdigit()) or other == NONE)
    return False


def _may_be_its_own(walk: Walk, *sides: tuple[ast.expr, Value]) -> bool:
    """Whether a rank is compared with something of which neither value nor name tell that it is the same everywhere."""
    return any(
        isinstance(node, ast.Attribute)
        and isinstance(value, Obj)
        and walk.what(value) is What.OPAQUE
        and value.cls is None
        and not _ONE_FOR_ALL.search(node.attr)
        for node, value in sides
    )


# How programs call the rank that does something for all, or a number of ranks.
_ONE_FOR_ALL = re.compile(r"src|source|dst|dest|root|main|master|first|last|lead|sav|writ|zero|world|size|num|coord")


def _counts_all(value: Value) -> bool:
    if isinstance(value, Obj) and isinstance(value.cls, External):
        return value.cls.name == "torch.distributed.get_world_size" or value.cls.name.endswith(".device_count")
    return False


@expression(ast.JoinedStr)
def _f_string(walk: Walk, node: ast.JoinedStr) -> Value:
    values: list[Value] = []
    for part in node.values:
        if isinstance(part, ast.FormattedValue):
            values.append(walk.evaluate(part.value))
        else:
            values.append(walk.evaluate(part))
    if all(isinstance(v, Const) and isinstance(v.value, str | int) for v in values):
        return Const("".join(str(single(v)) for v in values))
    return walk.sym("f-string", *values, rank=any(map(ranked, values)))


@expression(ast.Subscript)
def _subscript(walk: Walk, node: ast.Subscript) -> Value:
    value = walk.evaluate(node.value)
    if isinstance(node.slice, ast.Slice):
        parts = (node.slice.lower, node.slice.upper, node.slice.step)
        bounds = [walk.evaluate(part) if part is not None else NONE for part in parts]
        if any(map(ranked, bounds)):
            walk.emit(DividedByRank, node)
        return union([(path, unequal.part(walk, _slice(walk, v, bounds), bounds)) for path, v in members(value)])
    key = walk.evaluate(node.slice)
    if ranked(key):
        by_local_rank = division.cuts(node.value) and division.within_machine(walk, key)
        walk.emit(DividedByRank, node, by_local_rank=by_local_rank)
    return union([(path, item(walk, v, key, node)) for path, v in members(value)])


def _slice(walk: Walk, value: Value, bounds: list[Value]) -> Value:
    content = walk.elements(value) if isinstance(value, Obj) else None
    items = value.items if isinstance(value, Tuple) else content.items if content is not None else None
    if items is None:
        return value
    exact = isinstance(value, Tuple) or (content is not None and content.exact)
    if exact and all(isinstance(b, Const) and isinstance(b.value, int | None) for b in bounds):
        start, stop, step = (b.value if isinstance(b, Const) and isinstance(b.value, int) else None for b in bounds)
        chosen = items[start:stop] if step == 0 else items[start:stop:step]
        return Tuple(chosen) if isinstance(value, Tuple) else walk.new_list(chosen)
    return walk.new_list(items, exact=False)


def item(walk: Walk, value: Value, key: Value, node: ast.AST) -> Value:
    """`value[key]`."""
    index = single(key)
    if isinstance(value, Tuple):
        if isinstance(index, int) and -len(value.items) <= index < len(value.items):
            return value.items[index]
        return union([((), v) for v in value.items]) if value.items else walk.unknown()
    if isinstance(value, External | Class):  # `list[int]`, `Callable[..., None]`
        return walk.sym("rank", key, rank=True) if _is_environ(value) and index in division.RANKS else (
            walk.sym("item", value, key) if _is_environ(value) else value
        )  # fmt: skip
    if not isinstance(value, Obj):
        if isinstance(value, Tensors | RngState):
            return value
        return walk.sym("item", value, key, rank=ranked(value) or ranked(key))
    content = walk.content(value)
    if isinstance(content, Elements) and content.items:
        if content.exact and isinstance(index, int) and -len(content.items) <= index < len(content.items):
            return content.items[index]
        return union([((), v) for v in content.items])
    if isinstance(content, Items):
        filled.read(walk, value, key, node)
        found = [v for k, v in content.items if k == key]
        if not found and not content.exact:
            found = [v for k, v in content.items if not isinstance(k, Const) or not isinstance(key, Const)]
        if not found and content.exact and not isinstance(key, Const):
            found = [v for _, v in content.items]
        return union([((), v) for v in found]) if found else child(walk, value, _subscript_name(key))
    if isinstance(value.data, StateData):
        if value.data.kind is Kind.OPTIMIZER and index == "param_groups":
            return walk.sym("item", value, key)  # hyperparameters and names, no tensors
        return Tensors(value.data.of, value.data.kind, value.data.form, value.data.via)
    if isinstance(value.data, OptionsData):
        return walk.unknown()
    if value.what is What.MESH:
        return sub_mesh(walk, value, key)
    if isinstance(value.cls, Class) and (getter := calls.find_method(walk, value, "__getitem__")) is not None:
        return calls.call_value(walk, getter, calls.Call(walk, node, [key], {}))
    return child(walk, value, _subscript_name(key))


def _is_environ(value: Value) -> bool:
    return value == External("os.environ")


def _subscript_name(key: Value) -> str:
    return f"[{single(key)!r}]" if isinstance(key, Const) and isinstance(key.value, str) else "[*]"


def sub_mesh(walk: Walk, mesh: Obj, key: Value) -> Value:
    """A dimension of a mesh, the same one each time that it is asked for."""
    name = f"[{single(key)!r}]"
    known = walk.get((mesh.id, name))
    if known is None or not isinstance(key, Const):
        known = walk.new(What.MESH)
        walk.store.set((known.id, "%dims"), Tuple((key,)) if isinstance(key, Const) else key)
        walk.store.set((known.id, "%of"), mesh)
        walk.label(known, name, mesh)
        walk.store.set((mesh.id, name), known)
    return known


def child(walk: Walk, outer: Obj, name: str) -> Value:
    """An element or attribute of an object about which nothing is known: the same one each time."""
    known = walk.get((outer.id, name if name.startswith("[") else "." + name))
    if known is not None:
        return known
    made = Obj(walk.fresh(), What.OPAQUE, None, name == "[*]", (outer, name))
    walk.store.set((outer.id, name if name.startswith("[") else "." + name), made)
    if outer.what in (What.OPAQUE, What.MODULE):
        walk.put_into(outer.id, made.id)
    return made


@expression(ast.ListComp, ast.SetComp, ast.GeneratorExp)
def _comprehension(walk: Walk, node: ast.ListComp | ast.SetComp | ast.GeneratorExp) -> Value:
    results, exact = _comprehend(walk, node.generators, lambda: walk.evaluate(node.elt))
    made = walk.new_list(results, exact)
    first = node.generators[0]
    each = len(node.generators) == 1 and not first.ifs and isinstance(first.iter, ast.Name)
    return unequal.follow(walk, made, walk.evaluate(first.iter)) if each else made


@expression(ast.DictComp)
def _dict_comprehension(walk: Walk, node: ast.DictComp) -> Value:
    pairs, exact = _comprehend(
        walk, node.generators, lambda: Tuple((walk.evaluate(node.key), walk.evaluate(node.value)))
    )
    items = [(pair.items[0], pair.items[1]) for pair in pairs if isinstance(pair, Tuple)]
    key, made = items[0] if len(items) == 1 else (NONE, NONE)
    if isinstance(made, Tensors):  # the state of an object, remade entry by entry
        prefix = named_by(walk, key) if isinstance(node.key, ast.Name) else None
        data = StateData(made.of, made.kind, made.form, made.via, None, None, None, ranked(key), prefix)
        return walk.new(What.STATE, data=data)
    remade = walk.new_dict(items, exact)
    if _takes_all(node):
        walk.establish(remade, "remade")
    return remade


def _takes_all(node: ast.DictComp) -> bool:
    """`{rename(key): value for key, value in others.items()}`: each value of another one, whatever its key."""
    (generator, *others) = node.generators
    target = generator.target
    pair = [part.id for part in target.elts if isinstance(part, ast.Name)] if isinstance(target, ast.Tuple) else []
    taken = isinstance(node.value, ast.Name) and pair[1:] == [node.value.id]
    return taken and not others and not generator.ifs


def _comprehend(
    walk: Walk, generators: list[ast.comprehension], produce: Callable[[], Value]
) -> tuple[list[Value], bool]:
    """The elements of a comprehension; those of an unknown number stand as one."""
    results: list[Value] = []
    frame = walk.frame
    outer = frame.scope
    frame.scope = walk.new_scope(outer)
    walk.captured.add(outer)
    walk.loops += 1
    try:
        exact = _produce(walk, generators, produce, results)
    finally:
        walk.loops -= 1
        frame.scope = outer
    if not exact:
        for value in results:
            if isinstance(value, Obj) and not value.many and value.what is not What.OPAQUE:
                results[results.index(value)] = _many(walk, value)
    return results, exact


def _produce(
    walk: Walk, generators: list[ast.comprehension], produce: Callable[[], Value], results: list[Value]
) -> bool:
    """Go through the generators, each within those before it; whether the results are all elements, one by one."""
    if not generators:
        results.append(produce())
        return True
    generator, *inner = generators
    found = iterate(walk, walk.evaluate(generator.iter))
    exact = found.exact and len(found.values) <= _COMPREHENDED
    for value in found.values[:_COMPREHENDED]:
        assign(walk, generator.target, value)
        answers = [test(walk, condition) for condition in generator.ifs]
        if any(answer.decided is False for answer in answers):
            continue
        decided = all(answer.decided for answer in answers)
        exact = _produce(walk, inner, produce, results) and exact and decided
    return exact


def _many(walk: Walk, obj: Obj) -> Obj:
    """The same object, standing for each element that the comprehension makes."""
    made = Obj(obj.id, obj.what, obj.cls, True, obj.parent, obj.data)
    if obj.id in walk.modules:
        walk.modules[obj.id] = made
    return made


@expression(ast.Starred)
def _starred(walk: Walk, node: ast.Starred) -> Value:
    return walk.evaluate(node.value)


@expression(ast.Await)
def _await(walk: Walk, node: ast.Await) -> Value:
    return walk.evaluate(node.value)


@expression(ast.Yield)
def _yield(walk: Walk, node: ast.Yield) -> Value:
    value = walk.evaluate(node.value) if node.value is not None else NONE
    _yielded(walk, value)
    return walk.unknown()


@expression(ast.YieldFrom)
def _yield_from(walk: Walk, node: ast.YieldFrom) -> Value:
    for value in iterate(walk, walk.evaluate(node.value)).values:
        _yielded(walk, value)
    return walk.unknown()


def _yielded(walk: Walk, value: Value) -> None:
    frame = walk.frame
    if frame.on_yield is not None:
        # What stands in the `with` is done on every rank, or it raises: conditions around the yield tell when.
        before, within = walk.path, len(frame.base)
        walk.path = before[:within] + without_ranks(before[within:])
        frame.on_yield(value)
        walk.path = (*before, *walk.path[len(before) :])
    elif len(frame.yields) < _COMPREHENDED:
        frame.yields.append(value)
