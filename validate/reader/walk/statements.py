"""What each kind of statement does."""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable

from ...events import Exited
from ..values import (
    NONE,
    Bound,
    Class,
    Const,
    External,
    Function,
    Items,
    Obj,
    Step,
    Sym,
    Tensors,
    Tuple,
    Union,
    Value,
    What,
    members,
    union,
)
from . import calls, filled, made, masked, unequal
from .assignment import assign, extend
from .conditions import branch, is_alone, test
from .contexts import context_manager, enter_context
from .core import End, Loop, Stop, Walk, statement
from .counting import training_loop
from .expressions import binary
from .handlers import for_imports_that_succeed, is_failure, tells_failure
from .loops import Iteration, iterate
from .parts import scaled
from .passes import going_through, skipping

_NESTED_LOOPS = 3  # loops within loops whose bodies are walked twice


@statement(ast.Expr)
def _expression(walk: Walk, node: ast.Expr) -> bool:
    walk.evaluate(node.value)
    return True


@statement(ast.Assign)
def _assign(walk: Walk, node: ast.Assign) -> bool:
    value = walk.evaluate(node.value)
    if isinstance(value, Const) and isinstance(node.value, ast.BinOp) and _mentions(node.value, node.targets):
        value = walk.sym()  # `step = step + 1` counts: the first value is not the one that matters
    for target in node.targets:
        assign(walk, target, value)
        if isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant):
            outer = walk.evaluate(target.value)
            if isinstance(outer, Obj) and outer.what is What.DICT:
                filled.put(walk, outer, target.slice.value, node.value)
    return True


def _mentions(value: ast.expr, targets: list[ast.expr]) -> bool:
    names = {ast.unparse(t) for t in targets if isinstance(t, ast.Name | ast.Attribute)}
    return any(ast.unparse(part) in names for part in ast.walk(value) if isinstance(part, ast.Name | ast.Attribute))


@statement(ast.AnnAssign)
def _annotated(walk: Walk, node: ast.AnnAssign) -> bool:
    if node.value is not None:
        assign(walk, node.target, walk.evaluate(node.value))
    return True


@statement(ast.AugAssign)
def _augmented(walk: Walk, node: ast.AugAssign) -> bool:
    before = walk.evaluate(_as_loaded(node.target))
    value = walk.evaluate(node.value)
    if isinstance(before, Obj) and before.what is What.LIST and isinstance(node.op, ast.Add):
        extend(walk, before, iterate(walk, value))
        return True
    if isinstance(node.op, ast.Mult | ast.Div):
        scaled(walk, before, value, node)
    result = binary(walk, node.op, before, value)
    if isinstance(result, Const) and not _is_undone(walk):
        result = walk.sym()  # a counter
    masked.carry(walk, node.op, (node.target, node.value), before, value, result)
    assign(walk, node.target, result)
    return True


def _is_undone(walk: Walk) -> bool:
    """Whether it happens on the way into or out of a `with`, which takes back what it has counted."""
    function = walk.frame.function
    return function is not None and function.name in ("__enter__", "__exit__")


def _as_loaded(node: ast.expr) -> ast.expr:
    """The same place, read instead of written."""
    if isinstance(node, ast.Name):
        return ast.copy_location(ast.Name(node.id, ast.Load()), node)
    if isinstance(node, ast.Attribute):
        return ast.copy_location(ast.Attribute(node.value, node.attr, ast.Load()), node)
    assert isinstance(node, ast.Subscript)
    return ast.copy_location(ast.Subscript(node.value, node.slice, ast.Load()), node)


@statement(ast.Delete)
def _delete(walk: Walk, node: ast.Delete) -> bool:
    for target in node.targets:
        if isinstance(target, ast.Subscript):
            outer = walk.evaluate(target.value)
            key = walk.evaluate(target.slice)
            content = walk.items(outer) if isinstance(outer, Obj) else None
            if content is not None and isinstance(outer, Obj):
                left = tuple((k, v) for k, v in content.items if k != key)
                known = isinstance(key, Const) or len(left) < len(content.items)
                walk.store.set((outer.id, "%items"), Items(left, content.exact and known))
    return True


@statement(ast.Pass, ast.Nonlocal)
def _pass(walk: Walk, node: ast.Pass | ast.Nonlocal) -> bool:
    if isinstance(node, ast.Nonlocal):
        for name in node.names:
            scope = walk.scopes[walk.frame.scope]
            while scope is not None and walk.store.get((scope, name)) is None:
                scope = walk.scopes[scope]
            if scope is not None:
                walk.frame.outer_names[name] = scope
    return True


@statement(ast.Global)
def _global(walk: Walk, node: ast.Global) -> bool:
    scope = walk.frame.scope
    while (outer := walk.scopes[scope]) is not None:
        scope = outer
    walk.frame.outer_names.update(dict.fromkeys(node.names, scope))
    return True


# --- definitions ---


@statement(ast.FunctionDef, ast.AsyncFunctionDef)
def _function(walk: Walk, node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    assign(walk, ast.Name(node.name, ast.Store()), _decorated(walk, node, calls.define(walk, node)))
    return True


_FLAVORS = {
    "builtins.property": "property", "functools.cached_property": "cached property",
    "builtins.staticmethod": "staticmethod", "builtins.classmethod": "classmethod",
    "contextlib.contextmanager": "contextmanager",
    "contextlib.asynccontextmanager": "contextmanager", "functools.cache": "cached", "functools.lru_cache": "cached",
}  # fmt: skip


def _decorated(walk: Walk, node: ast.FunctionDef | ast.AsyncFunctionDef, function: Function) -> Value:
    value: Value = function
    for decorator in reversed(node.decorator_list):
        applied = walk.evaluate(decorator)
        if isinstance(decorator, ast.Call) and walk.evaluate(decorator.func) == External("functools.lru_cache"):
            applied = External("functools.lru_cache")
        if isinstance(applied, External) and isinstance(value, Function):
            flavor = _FLAVORS.get(applied.name, value.flavor)
            value = Function(value.node, value.scope, value.file, value.name, value.defaults, value.owner, flavor)
        elif _is_mock(applied) and isinstance(value, Function):
            walk.walked.add(
                value.node
            )  # what it calls is replaced while it runs: its source does not tell what it does
        elif isinstance(applied, Function | Bound):
            made = calls.call_value(walk, applied, calls.Call(walk, decorator, [value], {}))
            value = made if isinstance(made, Function | Bound) else value
    return value  # a decorator of a library is taken to call what it decorates


def _is_mock(decorator: Value) -> bool:
    made_by = decorator.cls if isinstance(decorator, Obj) else None
    return isinstance(made_by, External) and made_by.name.startswith(("unittest.mock.patch", "mock.patch"))


@statement(ast.ClassDef)
def _class(walk: Walk, node: ast.ClassDef) -> bool:
    bases = tuple(walk.evaluate(base) for base in node.bases if not isinstance(base, ast.Starred))
    decorators = [walk.evaluate(decorator) for decorator in node.decorator_list]
    is_data = any(isinstance(d, External | Obj) and "dataclass" in _decorator_name(d) for d in decorators)
    scope = walk.new_scope(walk.frame.scope)
    cls = Class(scope, node.name, bases, node, is_data)
    walk.classes[scope] = cls
    for part in node.body:
        if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef):
            function = calls.define(walk, part, owner=scope)
            walk.store.set((scope, part.name), _decorated(walk, part, function))
        elif isinstance(part, ast.Assign | ast.AnnAssign | ast.ClassDef | ast.If | ast.Import | ast.ImportFrom):
            outer = walk.frame.scope
            walk.frame.scope = scope
            try:
                walk.execute([part])
            finally:
                walk.frame.scope = outer
    assign(walk, ast.Name(node.name, ast.Store()), cls)
    return True


def _decorator_name(value: External | Obj) -> str:
    return value.name if isinstance(value, External) else getattr(value.cls, "name", "")


# --- branches ---


@statement(ast.If)
def _if(walk: Walk, node: ast.If) -> bool:
    asks_how_run = walk.frame.function is None and any(
        isinstance(part, ast.Name) and part.id == "__name__" for part in ast.walk(node.test)
    )
    if asks_how_run:
        with walk.restored("guarded", True):
            return _sides(walk, node)
    return _sides(walk, node)


def _sides(walk: Walk, node: ast.If) -> bool:
    # Where one side is an error, nobody waits for those who meet it: the job ends.
    fails = any(side and is_failure(side[-1]) for side in (node.body, node.orelse))
    with walk.restored("asks", not fails):
        found = test(walk, node.test)
    return branch(walk, found, lambda: _make(walk, node), lambda: walk.execute(node.orelse))


def _make(walk: Walk, node: ast.If) -> bool:
    """The side of a condition on which it holds: `if x is None: x = ...`, perhaps."""
    falls = walk.execute(node.body)
    if falls and (held := made.lazily(node)) is not None:
        value = walk.evaluate(held)
        settled = made.settle(walk, value)
        if settled != value:
            assign(walk, held, settled)
    return falls


@statement(ast.Assert)
def _assert(walk: Walk, node: ast.Assert) -> bool:
    found = test(walk, node.test)
    for cell, value in found.known_yes:
        walk.store.set(cell, value)
    if found.decided is None and is_alone(walk, found.yes):
        walk.path += found.yes  # what follows is for one process
    return True


@statement(ast.Match)
def _match(walk: Walk, node: ast.Match) -> bool:
    subject = walk.evaluate(node.subject)
    return _cases(walk, subject, node.cases)


def _cases(walk: Walk, subject: Value, cases: list[ast.match_case]) -> bool:
    if not cases:
        return True
    case, rest = cases[0], cases[1:]
    decided = _matches(walk, subject, case)
    for name in (
        part for part in ast.walk(case.pattern) if isinstance(part, ast.MatchAs | ast.MatchStar) and part.name
    ):
        walk.store.set((walk.frame.scope, str(name.name)), subject if name is case.pattern else walk.unknown())
    if decided is not None:
        return walk.execute(case.body) if decided else _cases(walk, subject, rest)
    condition = walk.key("match", subject, ast.unparse(case.pattern), ast.unparse(case.guard) if case.guard else "")
    rank = isinstance(subject, Sym) and subject.rank
    words = (
        (f"{ast.unparse(case.pattern)} is the rank", f"{ast.unparse(case.pattern)} is not the rank")
        if rank
        else (None, None)
    )
    walk.fork(
        [
            ((Step(condition, True, words[0]),), (), lambda: walk.execute(case.body)),
            ((Step(condition, False, words[1]),), (), lambda: _cases(walk, subject, rest)),
        ]
    )
    return True


def _matches(walk: Walk, subject: Value, case: ast.match_case) -> bool | None:
    pattern = case.pattern
    if isinstance(pattern, ast.MatchAs) and pattern.pattern is None:
        return True if case.guard is None else test(walk, case.guard).decided
    if isinstance(pattern, ast.MatchValue) and isinstance(subject, Const):
        value = walk.evaluate(pattern.value)
        return value == subject if isinstance(value, Const) and case.guard is None else None
    return None


# --- loops ---


@statement(ast.For, ast.AsyncFor)
def _for(walk: Walk, node: ast.For | ast.AsyncFor) -> bool:
    since = walk.seen
    over = walk.evaluate(node.iter)
    found = iterate(walk, over)
    if not found.values:
        return walk.execute(node.orelse)
    binds: list[Callable[[], bool]] = [functools.partial(_bound, walk, node.target, value) for value in found.values]
    if not found.exact:
        binds.append(lambda: _bound_again(walk, node, found))
    frame = walk.frame
    outer, frame.going_through = frame.going_through, walk.about(over)
    try:
        with (
            unequal.going_round(walk, node, over),
            going_through(walk, node, since),
            training_loop(walk, node, repeats=not found.exact),
        ):
            return _loop(walk, binds, node.body, node.orelse, endless=False, repeats=not found.exact)
    finally:
        frame.going_through = outer


def _bound(walk: Walk, target: ast.expr, value: Value) -> bool:
    assign(walk, target, value)
    return True


def _bound_again(walk: Walk, node: ast.For | ast.AsyncFor, found: Iteration) -> bool:
    """The second time round: another element, unless the first stands for each of some modules."""
    value = found.values[0]
    if found.collection and (isinstance(value, Tensors) or _holds_module(walk, value)):
        return False
    assign(walk, node.target, renewed(walk, value))
    return True


def _holds_module(walk: Walk, value: Value) -> bool:
    inner = getattr(value, "items", ()) if not isinstance(value, Union | Obj) else ()
    singles = [v for part in (value, *inner) if isinstance(part, Value) for _, v in members(part)]
    return any(walk.what(v) in (What.MODULE, What.FUTURE, What.OPTIMIZER, What.SCHEDULER) for v in singles)


def renewed(walk: Walk, value: Value) -> Value:
    """Another value of the same kind."""
    if isinstance(value, Obj) and walk.what(value) is What.OPAQUE:
        return walk.unknown()
    if isinstance(value, Sym):
        another = Sym(walk.fresh(), value.rank)
        if (end := walk.store.get((value.key, "%below"))) is not None:
            walk.store.set((another.key, "%below"), end)
        return another
    if isinstance(value, Tuple):
        return Tuple(tuple(renewed(walk, v) for v in value.items))
    return value


@statement(ast.While)
def _while(walk: Walk, node: ast.While) -> bool:
    first = test(walk, node.test)
    if first.decided is False:
        return walk.execute(node.orelse)
    endless = isinstance(node.test, ast.Constant) and bool(node.test.value)

    def enter() -> bool:
        found = test(walk, node.test)
        for cell, value in found.known_yes:
            walk.store.set(cell, value)
        walk.path += tuple(step for step in found.yes if step.question is not None)
        return found.decided is not False

    skipping(walk, node)
    serving = walk.serving | {step.condition for step in walk.path if step.ranks is not None and endless}
    with training_loop(walk, node, repeats=True), walk.restored("serving", serving):
        return _loop(walk, [enter, enter], node.body, node.orelse, endless, repeats=True)


def _loop(
    walk: Walk,
    binds: list[Callable[[], bool]],
    body: list[ast.stmt],
    orelse: list[ast.stmt],
    endless: bool,
    repeats: bool,
) -> bool:
    base, mark, frame = walk.path, walk.store.mark(), walk.frame
    outer = frame.loop
    frame.loop = loop = Loop(mark)
    alive = True
    if repeats and walk.loops >= _NESTED_LOOPS:
        binds = binds[:1]
    walk.loops += repeats
    try:
        for enter in binds:
            if not enter():
                break
            fell = walk.execute(body)
            ends = loop.continues + ([End(walk.path, walk.store.since(mark))] if fell else [])
            loop.continues = []
            walk.store.rollback(mark)
            walk.path = base
            if not ends:
                alive = False
                break
            walk.resume(ends)
            # Each rank that goes round again has found for itself that it should.
            walk.path = base + tuple(s for s in walk.path[len(base) :] if s.question is not None)
    finally:
        walk.loops -= repeats
        frame.loop = outer
    ends = list(loop.breaks)
    if alive and not (endless and ends):
        if endless:
            return False
        ends.append(End(walk.path, walk.store.since(mark)))
    if not ends:
        return False
    walk.store.rollback(mark)
    walk.resume(ends)
    walk.path = base
    return walk.execute(orelse) if orelse and alive else True


@statement(ast.Break)
def _break(walk: Walk, _: ast.Break) -> bool:
    if (loop := walk.frame.loop) is not None:
        loop.breaks.append(End(walk.path, walk.store.since(loop.mark)))
    return False


@statement(ast.Continue)
def _continue(walk: Walk, _: ast.Continue) -> bool:
    if (loop := walk.frame.loop) is not None:
        loop.continues.append(End(walk.path, walk.store.since(loop.mark)))
        walk.leave_early()
    return False


# --- ends ---


@statement(ast.Return)
def _return(walk: Walk, node: ast.Return) -> bool:
    value = walk.evaluate(node.value) if node.value is not None else NONE
    walk.frame.returns.append(End(walk.path, walk.store.since(walk.frame.mark), value))
    walk.leave_early()
    return False


@statement(ast.Raise)
def _raise(walk: Walk, node: ast.Raise) -> bool:
    raised = walk.evaluate(node.exc) if node.exc is not None else None
    exits = External("builtins.SystemExit")
    is_exit = raised == exits or (isinstance(raised, Obj) and raised.cls == exits)
    ends = is_exit and not tells_failure(node.exc)
    walk.leave_early(all_functions=ends)
    if ends:
        walk.emit(Exited, node)
    raise Stop


@statement(ast.Try)
def _try(walk: Walk, node: ast.Try) -> bool:
    """The body, then each handler from the state that the body led to, as a branch that may be taken."""
    base, mark = walk.path, walk.store.mark()
    raised: list[End] = []
    walk.caught.append(raised)
    walk.trying.append(node)
    try:
        fell = walk.execute(node.body)
    finally:
        walk.trying.pop()
        walk.caught.pop()
    after = walk.path
    ends: list[End] = []
    if fell:
        fell = walk.execute(node.orelse)
    if fell:
        ends.append(End(walk.path, walk.store.since(mark)))
    changes = walk.store.since(mark)
    for handler in () if for_imports_that_succeed(node) else node.handlers:
        walk.store.rollback(mark)
        for cell, value in changes.items():
            before = walk.store.get(cell)
            walk.store.set(
                cell, union([((), v) for v in (before, value) if v is not None]) if value or before else None
            )
        entered = walk.fresh()
        walk.failures.add(entered)
        walk.path = (*base, Step(entered, True))
        if handler.name:
            walk.store.set((walk.frame.scope, handler.name), walk.unknown())
        if walk.execute(handler.body):
            ends.append(End(walk.path, walk.store.since(mark)))
    walk.store.rollback(mark)
    walk.path = base
    if ends:
        walk.resume(ends)
        if fell and len(ends) == 1:
            walk.path = after
    else:
        for cell, value in changes.items():
            walk.store.set(cell, value)
    finished = walk.execute(node.finalbody) if node.finalbody else True
    return bool(ends) and finished


if hasattr(ast, "TryStar"):
    statement(ast.TryStar)(_try)


# --- with ---


@statement(ast.With, ast.AsyncWith)
def _with(walk: Walk, node: ast.With | ast.AsyncWith) -> bool:
    return _enter(walk, node, 0)


def _enter(walk: Walk, node: ast.With | ast.AsyncWith, position: int) -> bool:
    if position == len(node.items):
        return walk.execute(node.body)
    expression, target = node.items[position].context_expr, node.items[position].optional_vars
    reached: list[bool] = []

    def body(value: Value) -> None:
        if target is not None:
            assign(walk, target, value)
        fell = _enter(walk, node, position + 1)
        reached.append(fell)
        if not fell:
            raise Stop

    if isinstance(expression, ast.Call):
        manager = context_manager(walk, expression)
        if manager is not None:
            frames = len(walk.frames)
            outer = walk.frame

            def within(value: Value) -> None:
                inner = walk.frames[frames:]
                del walk.frames[frames:]
                assert walk.frame is outer
                try:
                    body(value)
                finally:
                    walk.frames += inner

            manager(within)
            return True
    value = walk.evaluate(expression)
    entered, leave = enter_context(walk, value, expression)
    try:
        body(entered)
    except Stop:
        return False
    finally:
        leave()
    return True
