"""From a file to its traces: the program from its entry, then what the entry does not reach, function by function."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from ..events import Exited
from ..trace import Trace
from . import torch_api
from .nodes import nodes
from .source import Project, SourceFile
from .values import Bound, Class, Function, Obj, Value
from .walk import Exhausted, Stop, Walk
from .walk.calls import Call, call_value
from .walk.core import Frame
from .walk.escapes import escape
from .walk.imports import walk_module

assert torch_api  # importing it fills the tables


def traces(file: SourceFile, project: Project) -> list[Trace]:
    """The trace of the program that starts at `file`, then one for each function of the file that it does not reach."""
    walk = Walk(project)
    scope = walk.new_scope(None)

    def program() -> None:
        fell = walk_module(walk, file, scope, "__main__")
        walk.frames.append(Frame(file, scope, walk.store.mark()))
        for run in reversed(walk.at_exit):
            _guarded(walk, run)
        if fell:
            walk.emit(Exited, file.tree.body[-1] if file.tree.body else file.tree)

    ended = _guarded(walk, program)
    found = [walk.trace(ended)]
    walk.start_over()
    for function in _unreached(walk, file, scope):
        found += function
    return found


def _guarded(walk: Walk, run: Callable[[], object]) -> bool:
    """Run a piece of the walk; False when it came to one of the reader's limits."""
    try:
        run()
    except Stop:
        return True
    except Exhausted:
        return False
    except RecursionError:
        walk.note(None, "the program is nested too deeply for the reader")
        return False
    except Exception as error:  # whatever surprises the reader must not keep the other files from being judged
        walk.note(None, f"the reader gave up here ({type(error).__name__}: {error}); please report it", fault=True)
        return False
    return True


def _unreached(walk: Walk, file: SourceFile, scope: int) -> Iterator[list[Trace]]:
    """The functions that were not walked, those first that no other one mentions."""
    mentioned = {
        n.attr if isinstance(n, ast.Attribute) else n.id
        for n in nodes(file.tree)
        if isinstance(n, ast.Attribute) or (isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load))
    }
    top = [n for n in file.tree.body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)]
    for node in sorted(top, key=lambda n: n.name in mentioned):
        value = walk.get((scope, node.name))
        if isinstance(value, Class) and value.node is node:
            yield _class(walk, file, scope, value, mentioned)
        elif isinstance(value, Function) and node not in walk.walked:
            walk.start_over()
            yield [_alone(walk, file, scope, value)]


def _class(walk: Walk, file: SourceFile, scope: int, cls: Class, mentioned: set[str]) -> list[Trace]:
    """The methods of a class that were not walked, each on an instance made from unknown arguments."""
    methods = [
        n for n in cls.node.body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef) and n not in walk.walked
    ]
    methods = [m for m in methods if m.name != "__init__"] or methods[:1]
    found: list[Trace] = []
    by_name = {m.name: m for m in methods}
    leave = by_name.get("__exit__") if "__enter__" in by_name else None
    if leave is not None:  # what one of the two begins the other ends
        methods.remove(leave)
    if not methods:
        return []
    walk.start_over()
    mark = walk.store.mark()
    made: list[Value] = []

    def construct() -> None:
        walk.frames.append(Frame(file, scope, walk.store.mark()))
        made.append(call_value(walk, cls, Call(walk, cls.node, [], {}, open=True)))

    _guarded(walk, construct)
    built = walk.aside()  # the instance is built once, and each method starts from there
    for node in sorted(methods, key=lambda n: n.name in mentioned):
        if node in walk.walked and node.name != "__init__":
            continue
        walk.go_back(built)
        function = walk.get((cls.scope, node.name))
        receiver = made[0] if made and isinstance(made[0], Obj) else walk.unknown()
        if isinstance(function, Function) and node.name != "__init__":
            target = function if function.flavor == "staticmethod" else Bound(receiver, function)
            then = walk.get((cls.scope, "__exit__")) if node.name == "__enter__" and leave is not None else None
            found.append(
                _alone(walk, file, scope, target, Bound(receiver, then) if isinstance(then, Function) else None)
            )
        elif made:
            found.append(walk.trace(ended=False))
    if not found and made:  # building it has walked them all
        walk.go_back(built)
        found.append(walk.trace(ended=False))
    walk.store.rollback(mark)
    return found


def _alone(walk: Walk, file: SourceFile, scope: int, function: Value, then: Value | None = None) -> Trace:
    """One function with unknown arguments, whose result goes to an unknown caller, who calls `then` later."""
    mark = walk.store.mark()
    node = function.function.node if isinstance(function, Bound) else getattr(function, "node", file.tree)

    def run() -> None:
        walk.frames[:] = [Frame(file, scope, walk.store.mark())]
        call = Call(walk, node, [], {}, open=True)
        result = call_value(walk, function, call)
        escape(call, [result])
        if then is not None:
            call_value(walk, then, Call(walk, node, [], {}, open=True))

    _guarded(walk, run)
    trace = walk.trace(ended=False)
    walk.store.rollback(mark)
    return trace
