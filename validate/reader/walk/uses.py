"""Uses of torch's distributed API that not every release of torch allows.

Most uses are the same in all releases and leave no trace. Of the others an event tells, unless the program shows that
it knows: it asks for the version, for the name (`hasattr`), or is ready for the failure (`except ImportError`).
"""

from __future__ import annotations

import ast
import functools
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ...api import table
from ...api.paths import OLD_PATHS
from ...events import OldPathUsed, TorchApiUsed
from ..nodes import around, inside, is_exit, last_name, nodes, parents
from ..values import Class, External, Obj, Value, What
from .classes import lineage
from .core import Walk

if TYPE_CHECKING:
    from .calls import Call

_FSDP = "torch.distributed.fsdp.FSDPModule"
# Names that the plugins of other accelerators add to torch's own modules.
_OF_PLUGINS = re.compile(r"(^|_)(npu|hpu|mlu|musa|gcu)(_|$)|([hme]ccl|cncl)(_|$)", re.IGNORECASE)
_FSDP1 = "torch.distributed.fsdp.FullyShardedDataParallel"
_MODULE = "torch.nn.modules.module.Module"
_MESH = "torch.distributed.DeviceMesh"
_DTENSOR = "torch.distributed.tensor.DTensor"
_MAKE_DTENSORS = {
    f"torch.distributed.tensor.{name}"
    for name in ("DTensor.from_local", "distribute_tensor", "empty", "full", "ones", "rand", "randn", "zeros")
}
# What a method of a module is called when it can only be meant for FSDP.
_OF_FSDP = re.compile(r"set_.*(grad|reduce|gather|shard|sync|prefetch|backward|comm|mem)|fsdp|unshard|reshard|prefetch")
# How programs call what tells whether torch can do something, and what merely sounds like it.
_ASKING = re.compile(
    r"version|avail|support|compat|(^|_)has_|signature|find_spec|TYPE_CHECKING|nightly|at_least"
    r"|(^|_)is_torch|torch_?(ge|gt|lt|le|\d)|(newer|older|greater|lower)_",
    re.IGNORECASE,
)
_NOT_ASKING = re.compile(r"is_(\w+_)?available$|is_bf16_supported$")
_FORGIVING = {"ImportError", "ModuleNotFoundError", "AttributeError", "TypeError", "NotImplementedError", "NameError"}
_CATCH_ALL = {"Exception", "BaseException"}


def named(walk: Walk, name: str, node: ast.AST, *, imported: bool = False) -> bool:
    """The program names something of torch, as an attribute or in an import. Returns whether a release lacks it."""
    if not (name.startswith(table.COVERED) and table.lacked(name)):
        return False
    if not _tested(walk, node):
        _tell(walk, node, name, None, imported)
    return True


def imported_from(walk: Walk, node: ast.ImportFrom) -> None:
    """The program imports from a module of a library: of torch's old paths an event tells."""
    path = node.module or ""
    public = OLD_PATHS.get(path)
    if public is None or (node, path, None) in walk.api_uses:
        return
    names = tuple(alias.name for alias in node.names)
    everywhere = (table.history(f"{public}.{name}") for name in names)
    if not all(known and all(known.values()) for known in everywhere):
        return  # some of it is private there too, or not in every release
    facts = _facts(walk.frame.file.tree)
    if not (_is_asked(walk, facts, node) or _is_caught(walk, True) or _is_fallback(walk, node)):
        walk.api_uses.add((node, path, None))
        walk.emit(OldPathUsed, node, path=path, public=public, names=names)


def called(call: Call, name: str) -> None:
    """The program calls a function or class of torch."""
    if name.startswith(table.COVERED):
        _arguments(call, name, len(call.args) - table.binds(name))


def method_called(call: Call, receiver: Value, name: str) -> None:
    """The program calls a method of an object, which may be torch's."""
    found = _class_of(call.walk, receiver)
    if found is not None:
        _arguments(call, f"{found[0]}.{name}", len(call.args))


def member(walk: Walk, receiver: Value, name: str, node: ast.AST, is_called: bool) -> None:
    """The program asks an object, which may be torch's, for an attribute that it did not set itself."""
    found = _class_of(walk, receiver) if not walk.among else None
    if found is None:
        return
    path, certain = f"{found[0]}.{name}", found[1]
    if not table.lacked(path) or _tested(walk, node) or _is_meant_for_another(walk, node):
        return
    # A module has attributes that its class does not show; what it is called by is a method.
    if any(table.history(path).values()) or (
        certain and (is_called or found[0] != _FSDP) and _fails(walk, receiver, name)
    ):
        _tell(walk, node, path, None, False)


def _is_meant_for_another(walk: Walk, node: ast.AST) -> bool:
    """Whether the object is what a parameter was given that is of a class of the program: the mistake is the caller's.

    Or the reader's, who has taken one object for another.
    """
    function = walk.frame.function
    if function is None or not (isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)):
        return False
    spec, name = function.node.args, node.value.id
    said = next((a.annotation for a in (*spec.posonlyargs, *spec.args, *spec.kwonlyargs) if a.arg == name), None)
    if said is None:
        return False
    return any(isinstance(part, ast.Name) and isinstance(walk.evaluate(part), Class) for part in ast.walk(said))


def _tested(walk: Walk, node: ast.AST) -> bool:
    """Whether the program asked on the way to here what the object is, so that it may be another one."""
    if not isinstance(node, ast.Attribute):
        return False
    receiver = ast.unparse(node.value)
    asked = [
        part
        for test, _ in walk.tests_on_the_way()
        for part in ast.walk(test)
        if isinstance(part, ast.Call) and len(part.args) == 2
    ]
    return any(
        ast.unparse(a.func) in ("isinstance", "issubclass")
        and ast.unparse(a.args[0]) == receiver
        and "FSDP" not in ast.unparse(a.args[1])
        for a in asked
    )


def doubted(walk: Walk, node: ast.AST) -> bool:
    """Whether the program asks on the way to here what torch has, or which FSDP it is, or is ready for the failure."""
    return _is_asked(walk, _facts(walk.frame.file.tree), node) or _is_caught(walk, False)


def lacks(walk: Walk, module: Obj, node: ast.Attribute) -> bool:
    """Whether a sharded module is sure not to have a method that FSDP1's wrapper has, and the program did not ask."""
    if walk.among or _tested(walk, node) or doubted(walk, node):
        return False
    if isinstance(module.cls, Class):
        return lineage(module.cls)[1]
    return isinstance(module.cls, External) and module.cls.name.startswith("torch.nn.")


def annotated(walk: Walk, made: Obj, cls: External) -> None:
    """A parameter is said to be of a class, which may be torch's."""
    if cls.name.startswith(table.COVERED) and table.is_class(cls.name):
        walk.store.set((made.id, "%annotated"), cls)


def _arguments(call: Call, name: str, positional: int) -> None:
    if call.one_of_several:
        return
    keywords = tuple(sorted(set(call.kwargs) - call.doubted))
    for argument in table.refused(name, max(0, positional), keywords):
        _tell(call.walk, call.node, name, argument, False)


def _class_of(walk: Walk, value: Value) -> tuple[str, bool] | None:
    """The class of torch's that an object is of, and whether it is of no subclass of the program's."""
    if not isinstance(value, Obj):
        return None
    what = walk.what(value)
    if what is What.MESH:
        return _MESH, True
    if what is What.MODULE and walk.fact(value, "sharded"):
        return _FSDP, True
    if isinstance(value.cls, External):
        if value.cls.name in _MAKE_DTENSORS:
            return _DTENSOR, True
        if value.cls.name.startswith(table.COVERED) and table.is_class(value.cls.name):
            return value.cls.name, True
        return None
    return _annotated(walk, value)


def _annotated(walk: Walk, value: Obj) -> tuple[str, bool] | None:
    """A parameter of which the program says what it is: an argument may be of a class of its own below that."""
    said = walk.store.get((value.id, "%annotated"))
    return (said.name, False) if isinstance(said, External) else None


def _fails(walk: Walk, value: Value, name: str) -> bool:
    """Whether an object is sure not to have an attribute that no release gives it."""
    if not isinstance(value, Obj) or walk.what(value) is not What.MODULE:
        return True
    if table.find(f"{_MODULE}.{name}", table.releases()[-1]).text:
        return False
    if table.find(f"{_FSDP1}.{name}", table.releases()[-1]).text:  # FSDP1's own API is another rule's
        return False
    trees = {*walk.project.trees(), *(frame.file.tree for frame in walk.frames)}
    if any(name in facts.defined | facts.stored | facts.strings for facts in (_facts(t) for t in trees)):
        return False  # the program gives something this name
    if isinstance(value.cls, Class):
        classes, complete = lineage(value.cls)
        return complete and not any(
            isinstance(c, Class) and walk.get((c.scope, "__getattr__")) is not None for c in classes
        )
    return _OF_FSDP.search(name) is not None and table.closest(f"{_FSDP}.{name}", table.releases()[-1]) is not None


# --- programs that know ---


@dataclass
class _Facts:
    """What a file shows of its doubts about torch.

    `modules`: the names that it gives modules of torch's where it imports them; `asking`:
    variables and functions that tell whether torch has something; `strings`: names that it asks for, sets or takes away
    by name; `stored`: attributes that it sets; `defined`: functions and classes; `extended`: it imports a library that
    adds names to torch's own modules; `asks`: what was found of some pieces.
    """

    modules: set[str] = field(default_factory=set)
    asking: set[str] = field(default_factory=set)
    strings: set[str] = field(default_factory=set)
    stored: set[str] = field(default_factory=set)
    defined: set[str] = field(default_factory=set)
    extended: bool = False
    asks: dict[ast.AST, bool] = field(default_factory=dict)


def _tell(walk: Walk, node: ast.AST, name: str, argument: str | None, imported: bool) -> None:
    tree = walk.frame.file.tree
    facts = _facts(tree)
    key, last = (node, name, argument), name.rpartition(".")[2]
    if key in walk.api_uses or _OF_PLUGINS.search(last) or (facts.extended and not any(table.history(name).values())):
        return
    if name in walk.api_asked or (argument is not None and argument in facts.strings):
        return
    parts = set(name.split(".")[2:])  # it may be put in the place of any of them
    if argument is None and (last in facts.stored or not parts.isdisjoint(facts.strings)):
        return
    if _is_asked(walk, facts, node) or _is_caught(walk, imported):
        if imported:
            walk.api_asked.add(name)
        return
    walk.api_uses.add(key)
    walk.emit(TorchApiUsed, node, name=name, argument=argument)


def _is_asked(walk: Walk, facts: _Facts, node: ast.AST) -> bool:
    """Whether a condition on the way to here, or around it, asks what torch has."""
    if any(_asks(test, _facts(tree)) for test, tree in walk.tests_on_the_way()):
        return True
    inner, above = node, parents(walk.frame.file.tree)
    while (outer := above.get(inner)) is not None:
        if isinstance(outer, ast.If | ast.IfExp | ast.While | ast.Assert) and inner is not outer.test:
            if _asks(outer.test, facts):
                return True
        elif isinstance(outer, ast.BoolOp | ast.comprehension | ast.GeneratorExp | ast.ListComp | ast.DictComp):
            if any(_asks(part, facts) for part in inside(outer) if part is not inner):
                return True
        elif isinstance(outer, ast.With | ast.AsyncWith) and any(map(_suppresses, outer.items)):
            return True
        if any(_leaves_unless(before, facts) for before in around(outer, inner)[0]):
            return True
        inner = outer
    return False


def _leaves_unless(statement: ast.stmt, facts: _Facts) -> bool:
    """Whether the program goes on after the statement only when torch has what it asked for."""
    if isinstance(statement, ast.Assert):
        return _asks(statement.test, facts)
    if isinstance(statement, ast.If) and _asks(statement.test, facts):
        ends = [body[-1] for body in (statement.body, statement.orelse) if body]
        return any(isinstance(e, ast.Raise | ast.Return | ast.Continue | ast.Break) or _skips(e) for e in ends)
    call = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(call, ast.Call) and _asks(call.func, facts)


def _skips(statement: ast.stmt) -> bool:
    call = statement.value if isinstance(statement, ast.Expr) else None
    return is_exit(statement) or (isinstance(call, ast.Call) and last_name(call.func) in ("skip", "fail"))


def _suppresses(item: ast.withitem) -> bool:
    call = item.context_expr
    if not (isinstance(call, ast.Call) and last_name(call.func) in ("suppress", "raises")):
        return False
    return any(_exception_names(arg) & _FORGIVING for arg in call.args)


def _is_caught(walk: Walk, imported: bool) -> bool:
    """Whether a `try` around this is there for what torch may lack; one that swallows everything hides a mistake."""
    for statement in walk.trying:
        for handler in statement.handlers:
            caught = _exception_names(handler.type) if handler.type is not None else set(_CATCH_ALL)
            if caught & _FORGIVING:
                return True
            if caught & _CATCH_ALL and (imported or not all(map(_does_nothing, handler.body))):
                return True
    return False


def _is_fallback(walk: Walk, node: ast.AST) -> bool:
    """Whether a handler holds this, for what failed before because torch lacks it."""
    above = parents(walk.frame.file.tree)
    while (outer := above.get(node)) is not None:
        if isinstance(outer, ast.ExceptHandler):
            caught = _exception_names(outer.type) if outer.type is not None else _CATCH_ALL
            if caught & (_FORGIVING | _CATCH_ALL):
                return True
        node = outer
    return False


def _exception_names(node: ast.expr) -> set[str]:
    parts = node.elts if isinstance(node, ast.Tuple) else [node]
    return {last_name(part) for part in parts}


def _does_nothing(statement: ast.stmt) -> bool:
    """Whether a handler's statement only ends, tells or passes on the failure."""
    if isinstance(statement, ast.Expr):
        call = statement.value
        return not isinstance(call, ast.Call) or bool(_TELLING.search(ast.unparse(call.func)))
    return isinstance(statement, ast.Pass | ast.Continue | ast.Break | ast.Raise) or (
        isinstance(statement, ast.Return) and (statement.value is None or isinstance(statement.value, ast.Constant))
    )


_TELLING = re.compile(r"^print$|log|warn|traceback|debug|info$|error$|exception$", re.IGNORECASE)


def _asks(node: ast.AST, facts: _Facts) -> bool:
    """Whether a piece of a file whose facts are known asks what torch has."""
    if node not in facts.asks:
        facts.asks[node] = _asks_now(node, facts)
    return facts.asks[node]


def _asks_now(node: ast.AST, facts: _Facts) -> bool:
    """The same where not all facts are known yet."""
    if any(isinstance(part, ast.Call) and _asks_by_name(part, facts) for part in nodes(node)):
        return True
    return any(n in facts.asking or (_ASKING.search(n) and not _NOT_ASKING.search(n)) for n in _identifiers(node))


def _asks_by_name(call: ast.Call, facts: _Facts) -> bool:
    """`hasattr(model, "unshard")`: whether it asks for a name of torch's, or a module of torch's for any name."""
    if not (isinstance(call.func, ast.Name) and call.func.id in ("hasattr", "getattr") and len(call.args) > 1):
        return False
    holder, name = call.args[:2]
    if isinstance(holder, ast.Name) and holder.id in facts.modules:
        return True
    return not isinstance(name, ast.Constant) or table.has_last(str(name.value))


def _identifiers(node: ast.AST) -> Iterator[str]:
    for part in nodes(node):
        if isinstance(part, ast.Name):
            yield part.id
        elif isinstance(part, ast.Attribute):
            yield part.attr


@functools.lru_cache(maxsize=512)  # as many as the trees that are kept: a module is looked at once for all programs
def _facts(tree: ast.Module) -> _Facts:
    """What a file shows, looked at when there is something to ask of it."""
    facts = _Facts()
    every = nodes(tree)
    for node in every:
        facts.strings.update(_strings(node))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            facts.defined.add(node.name)
        elif isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load):
            facts.stored.add(node.attr)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            facts.extended = facts.extended or any(name.partition(".")[0] in _EXTENDING for name in _modules(node))
            if _modules(node)[0].partition(".")[0] == "torch":
                facts.modules.update(alias.asname or alias.name.partition(".")[0] for alias in node.names)
    telling = [node for node in every if isinstance(node, _TELL_NAMES)]
    for _ in range(2):  # a variable may be set from another
        before = len(facts.asking)
        for node in telling:
            facts.asking.update(_asking_names(node, facts))
        if len(facts.asking) == before:
            break
    return facts


_TELL_NAMES = (ast.Assign, ast.FunctionDef, ast.AsyncFunctionDef, ast.ExceptHandler)
_EXTENDING = ("torch_npu", "torch_musa", "torch_mlu")


def _modules(node: ast.Import | ast.ImportFrom) -> list[str]:
    """The modules that a statement imports, or imports from."""
    return [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]


def _strings(node: ast.AST) -> Iterator[str]:
    """The names that a node asks for, sets or takes away as strings."""
    if isinstance(node, ast.Call) and last_name(node.func) in _BY_NAME:
        names = (a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str))
        yield from (name.rpartition(".")[2] for name in names)
        yield from (k.arg for k in node.keywords if k.arg is not None and "patch" in ast.unparse(node.func))
    elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Del) and isinstance(node.slice, ast.Constant):
        yield str(node.slice.value)
    elif isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn):
        yield from (str(part.value) for part in (node.left,) if isinstance(part, ast.Constant))


_BY_NAME = {
    "hasattr",
    "getattr",
    "setattr",
    "delattr",
    "pop",
    "patch",
    "object",
    "multiple",
    "register_buffer",
    "add_module",
}


def _asking_names(node: ast.AST, facts: _Facts) -> Iterator[str]:
    if isinstance(node, ast.Assign) and _asks_now(node.value, facts):
        yield from (name for target in node.targets for name in _identifiers(target) if name != "self")
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        # A short function that asks and does little else; a long one asks on the way to something.
        if len(node.body) <= 4 and sum(1 for _ in itertools.islice(ast.walk(node), 80)) < 80 and _asks_now(node, facts):
            yield node.name
    elif isinstance(node, ast.ExceptHandler) and node.type is not None and _exception_names(node.type) & _FORGIVING:
        for part in node.body:
            if isinstance(part, ast.Assign):
                yield from (name for target in part.targets for name in _identifiers(target))
