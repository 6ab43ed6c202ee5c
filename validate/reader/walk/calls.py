"""Calls: of functions and classes of the program, which are walked, and of library code, which is looked up."""

from __future__ import annotations

import ast
import dataclasses
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from ...events import ForwardBypassed, ForwardEntered, Stepped
from ..torch_api.table import ANY_METHODS, API, METHODS
from ..values import (
    NONE,
    Bound,
    Class,
    Const,
    External,
    Function,
    Method,
    Obj,
    Part,
    Partial,
    Path,
    Step,
    Super,
    Sym,
    Tensors,
    Tuple,
    Union,
    Value,
    What,
    members,
    single,
    union,
    without_ranks,
)
from . import beginnings, contents, division, dtypes, endings, passes, ties, uses
from .classes import lineage, makes
from .conditions import is_alone, walk_cell
from .core import DEPTH_LIMIT, FAR_STATEMENT_LIMIT, Cost, End, Frame, Stop, Walk
from .escapes import escape
from .filled import read
from .folders import pass_on
from .lookup import attribute
from .loops import iterate
from .parts import handed_on
from .structure import borrows, drops, is_leaf, uncovered


@dataclass
class Call:
    """One call: where, and with what. `open`: there may be more arguments than are known."""

    walk: Walk
    node: ast.AST
    args: list[Value]
    kwargs: dict[str, Value]
    open: bool = False
    name: str = ""  # the canonical name, when a library's function is called
    doubted: frozenset[str] = frozenset()  # keywords from a dictionary that may have been built without them
    one_of_several: bool = False  # what is called is one of several things that it may be

    def get(self, position: int | None, name: str) -> Value | None:
        """An argument by position or name; None when it was not given."""
        if name in self.kwargs:
            return self.kwargs[name]
        if position is not None and position < len(self.args):
            return self.args[position]
        return None

    def constant(self, position: int | None, name: str) -> object:
        """The Python constant given for an argument; None when there is none."""
        return single(self.get(position, name))

    def everything(self) -> list[Value]:
        """All arguments."""
        return [*self.args, *self.kwargs.values()]


# --- calling ---


def call_expression(walk: Walk, node: ast.Call) -> Value:
    """Evaluate a call."""
    if isinstance(node.func, ast.Attribute):
        callee = attribute(walk, walk.evaluate(node.func.value), node.func.attr, node.func, called=True)
    elif isinstance(node.func, ast.Name) and node.func.id == "super" and len(node.args) in (0, 2):
        return _super(walk, node.args)
    else:
        callee = walk.evaluate(node.func)
    call = Call(walk, node, [], {})
    for argument in node.args:
        if isinstance(argument, ast.Starred):
            found = iterate(walk, walk.evaluate(argument.value))
            call.args += found.values
            call.open = call.open or not found.exact
        else:
            call.args.append(walk.evaluate(argument))
    for keyword in node.keywords:
        value = walk.evaluate(keyword.value)
        if keyword.arg is not None:
            call.kwargs[keyword.arg] = value
            continue
        read(walk, value, None, node)
        content = walk.items(value) if isinstance(value, Obj) else None
        call.open = call.open or content is None or not content.exact
        written = walk.literals.get(value.id, frozenset()) if isinstance(value, Obj) else frozenset()
        for key, given in content.items if content is not None else ():
            if isinstance(name := single(key), str):
                call.kwargs[name] = given
                call.doubted |= {name} - written
    return call_value(walk, callee, call)


def call_value(walk: Walk, callee: Value, call: Call) -> Value:
    """Call whatever `callee` may be."""
    if isinstance(callee, Union):
        called = [(path, v) for path, v in callee.members if not isinstance(v, Const)]
        if len(called) > 1:  # ranks that hold different things come to this call all the same
            called = [(without_ranks(path), v) for path, v in called]
        sides = [(path, (), lambda v=v: call_value(walk, v, call)) for path, v in _told_apart(walk, call.node, called)]
        if not sides:
            return walk.unknown()
        call.one_of_several = True
        return union(walk.fork(sides))
    if isinstance(callee, Function):
        return invoke(walk, callee, call)
    if isinstance(callee, Bound):
        enter_registered(call, callee.receiver, callee.function.name)
        made = invoke(walk, callee.function, call, callee.receiver)
        if callee.function.name == "step" and call.node is not callee.function.node:
            own_step(call, callee.receiver)
        return made
    if isinstance(callee, Class):
        return instantiate(walk, callee, call)
    if isinstance(callee, Partial):
        kwargs = {**dict(callee.kwargs), **call.kwargs}
        whole = Call(walk, call.node, [*callee.args, *call.args], kwargs, call.open, doubted=call.doubted)
        return call_value(walk, callee.function, whole)
    if isinstance(callee, External):
        handler = API.get(callee.name) or API.get(callee.name.rpartition(".")[0] + ".*")
        call.name = callee.name
        uses.called(call, callee.name)
        return handler(call) if handler is not None else call_library(call, callee.name)
    if isinstance(callee, Method):
        return _call_method(walk, callee, call)
    if isinstance(callee, Obj):
        return _call_object(walk, callee, call)
    escape(call, call.everything())
    return walk.unknown()


def _told_apart(walk: Walk, node: ast.AST, called: list[tuple[Path, Value]]) -> list[tuple[Path, Value]]:
    """Several callees, each on branches of its own: one of them is called, even where nothing tells which."""
    found: list[tuple[Path, Value]] = []
    for number, (path, value) in enumerate(called):
        steps = [Step(walk.key("called", node, other), False) for p, other in called[:number] if p == path]
        if any(p == path for p, _ in called[number + 1 :]):
            steps.append(Step(walk.key("called", node, value), True))
        found.append(((*path, *steps), value))
    return found


def _call_method(walk: Walk, callee: Method, call: Call) -> Value:
    receiver = callee.receiver
    if callee.name in ("to", "cuda", "xpu", "to_empty"):
        _uses_accelerator(call, callee.name, receiver)
    if isinstance(receiver, Super):
        if callee.name == "__init__" and isinstance(receiver.receiver, Obj):
            return NONE
        receiver = receiver.receiver
    else:
        uses.method_called(call, receiver, callee.name)
        enter_registered(call, receiver, callee.name)
    what = walk.what(receiver)
    if what is not None and isinstance(receiver, Obj):
        handler = METHODS.get((what, callee.name))
        if handler is not None:
            return handler(call, receiver)
    general = ANY_METHODS.get(callee.name)
    if general is not None and (result := general(call, receiver)) is not None:
        return result
    ties.method_called(walk, receiver, callee.name, call.node)
    if what in (What.MODULE, What.OPAQUE) and not callee.name.startswith(_LEAVE_VALUES):
        contents.fill(walk, receiver)
        if not (isinstance(receiver, Obj) and is_leaf(receiver)):  # torch.nn's own methods leave the dtype as it is
            dtypes.forget(walk, receiver)
    if isinstance(receiver, Tensors):
        if callee.name.endswith("_"):
            contents.fill(walk, receiver)
        if callee.name.startswith("register_"):
            callbacks(call, call.everything())
        return receiver if callee.name in _SAME_TENSORS else walk.sym("method", callee.name, receiver)
    if isinstance(receiver, Part):
        return receiver if not receiver.pending or callee.name in _SAME_TENSORS else walk.sym()
    if isinstance(receiver, Sym | Const):
        rank = any(isinstance(v, Sym) and v.rank for v in [receiver, *call.everything()])
        rank = rank and callee.name not in _ASK_OF_ENDS
        parts = () if callee.name in _CONTENT else ("method", callee.name, receiver, *call.args)
        return walk.sym(*parts, rank=rank)
    if what in (What.OPAQUE, What.INSTANCE, What.LOADER):
        _call_unseen(call, callee.name)
        if what is What.OPAQUE and callee.name not in _MEET_NOBODY:
            walk.call_unseen()
        if what is What.INSTANCE and isinstance(receiver, Obj):
            escape(call, [receiver])
    made = walk.unknown()
    if callee.name not in _CONTENT:
        walk.answers(made.id, receiver)
    return pass_on(walk, [receiver, *call.everything()], made)


# What methods that print, count or collect are called, of objects of which nothing is known.
_MEET_NOBODY = {
    "add", "add_scalar", "add_scalars", "append", "clear", "close", "copy", "critical", "debug", "detach", "error",
    "eval", "exception", "extend", "flush", "format", "get", "info", "insert", "item", "items", "join", "keys",
    "log", "log_metrics", "mkdir", "pop", "print", "put", "remove", "set_description", "set_postfix", "size",
    "start", "state_dict", "stop", "to", "train", "update", "values", "warn", "warning", "write",
}  # fmt: skip

# What asks how a string begins or ends, where that does not lie: the rank is inside.
_ASK_OF_ENDS = ("startswith", "endswith")

# What gives the content of a file, which is the same for all that see the file.
_CONTENT = ("open", "read_text", "read_bytes")

# Methods, of modules without source, that set no parameter.
_LEAVE_VALUES = (
    "gradient_checkpointing",
    "enable_",
    "disable_",
    "tie_weights",
    "set_requires",
    "requires_grad",
    "num_",
)


def _uses_accelerator(call: Call, method: str = "", receiver: Value | None = None) -> None:
    from ..torch_api.launch import uses_accelerator

    uses_accelerator(call, method, receiver)


_SAME_TENSORS = {"detach", "clone", "cpu", "cuda", "to", "contiguous", "float", "numpy", "__iter__", "values", "keys"}


def _call_object(walk: Walk, callee: Obj, call: Call) -> Value:
    what = walk.what(callee)
    if what is What.MODULE:
        return enter_forward(call, callee)
    method = find_method(walk, callee, "__call__")
    if method is not None:
        return call_value(walk, method, call)
    if callee.parent is not None and not callee.parent[1].startswith("["):
        return _call_method(walk, Method(*callee.parent), call)
    written = ast.unparse(call.node.func) if isinstance(call.node, ast.Call) else ""
    _call_unseen(call, written)
    return walk.unknown()


def _call_unseen(call: Call, name: str) -> None:
    """Something without source is called, which may do what its name and its arguments tell of."""
    division.called(call, name)
    passes.called(call, name)
    endings.called(call, name)
    handed_on(call, name)
    escape(call, call.everything())
    callbacks(call, call.everything())


def find_method(walk: Walk, obj: Obj, name: str) -> Value | None:
    """A method that the class of `obj`, which is of the program, defines."""
    if not isinstance(obj.cls, Class):
        return None
    for base in lineage(obj.cls)[0]:
        if isinstance(base, Class) and isinstance(found := walk.get((base.scope, name)), Function):
            return Bound(obj, found) if found.flavor != "staticmethod" else found
    return None


# --- modules run ---


def enter_forward(call: Call, module: Obj) -> Value:
    """`module(...)`."""
    tell_forward(call, module)
    made = walk_forward(call, module, "forward")
    if isinstance(made, Obj):
        for of_loss, of_made in _LOSSES.items():
            if call.walk.fact(module, of_loss):
                call.walk.establish(made, of_made)
    return made


_LOSSES = {"means": "mean", "sums": "sum", "ignores": "masked"}  # of what a module makes, by what it is


def enter_registered(call: Call, receiver: Value, name: str) -> None:
    """`module.generate(...)`: a method that gathers parameters as a forward does, where it is registered to."""
    if isinstance(receiver, Obj) and call.walk.fact(receiver, "registered." + name):
        tell_forward(call, receiver)


def tell_forward(call: Call, module: Obj) -> None:
    """A forward of the module begins, as the program's own call."""
    walk = call.walk
    if walk.in_forward == 0 and walk.building == 0:
        owner = borrows(walk, module)
        walk.emit(
            ForwardEntered,
            call.node,
            module=walk.ref(module),
            sharded=walk.is_sharded(module),
            uncovered=uncovered(walk, module),
            borrows=walk.ref(owner) if owner is not None else None,
            drops=drops(walk, module),
            on_meta=contents.on_meta(walk, module),
            unset=contents.unset(walk, module),
            alike=beginnings.alike(walk, module),
        )


def bypass_forward(call: Call, module: Obj, name: str) -> None:
    """`module.forward(...)`: harmless unless the module, or something in it, waits for its hooks."""
    walk = call.walk
    receiver = walk.frame.receiver
    inside = (
        isinstance(receiver, Obj) and receiver.id == module.id
    )  # `self.forward(...)`: the hooks have run, or the call before tells
    if walk.is_sharded(module) and not walk.fact(module, "registered." + name) and not (inside and walk.in_forward):
        walk.emit(ForwardBypassed, call.node, module=walk.ref(module), method=name)


def walk_forward(call: Call, module: Obj, name: str) -> Value:
    """What happens inside `forward`, once for a module; modules that call each other are not called by the program."""
    walk = call.walk
    method = find_method(walk, module, name)
    if not isinstance(method, Bound) or walk.fact(module, "walked." + name):
        return walk.unknown()
    walk.establish(module, "walked." + name)
    with walk.restored("in_forward", walk.in_forward + 1):
        inside = Call(walk, method.function.node, call.args, call.kwargs, call.open)
        return invoke(walk, method.function, inside, module)


def own_step(call: Call, receiver: Value) -> None:
    """`optimizer.step()` of a class of the program's own."""
    if isinstance(receiver, Obj) and call.walk.what(receiver) is What.OPTIMIZER:
        call.walk.emit(Stepped, call.node, optimizer=call.walk.ref(receiver))


# --- functions of the program ---


def invoke(walk: Walk, function: Function, call: Call, receiver: Value | None = None) -> Value:
    """Walk the body of a function with these arguments, unless it keeps what it has once returned for them."""
    if not function.flavor.startswith("cached"):
        return _walk_body(walk, function, call, receiver)
    cell = (function.scope, f"%returned by {function.name}")
    given = [*call.everything()] if receiver is None else [receiver, *call.everything()]
    for _, kept in members(before) if (before := walk.store.get(cell)) is not None else ():
        if isinstance(kept, Tuple) and _may_be_equal(kept.items[1:], given):
            return kept.items[0]
    made = _walk_body(walk, function, call, receiver)
    walk.store.set(cell, Tuple((made, *given)))
    return made


def _may_be_equal(some: Sequence[Value], others: Sequence[Value]) -> bool:
    apart = any(isinstance(a, Const) and isinstance(b, Const) and a != b for a, b in zip(some, others, strict=False))
    return len(some) == len(others) and not apart


def _walk_body(walk: Walk, function: Function, call: Call, receiver: Value | None) -> Value:
    if _is_overload(function) and isinstance(receiver, Obj):
        return walk.unknown()
    active = sum(f.function is not None and f.function.node is function.node for f in walk.frames)
    if active >= 2 or len(walk.frames) > DEPTH_LIMIT:
        walk.note(call.node, f"`{function.name}` calls itself: not followed any deeper")
        return walk.unknown()
    if function.name == "forward" and isinstance(receiver, Obj) and walk.what(receiver) is What.MODULE:
        caller = walk.frames[-1].receiver if walk.frames else None
        if (
            call.node is not function.node
            and isinstance(call.node, ast.Call)
            and _is_direct_forward(walk, call.node, caller, receiver)
        ):
            bypass_forward(call, receiver, "forward")
            if walk.in_forward == 0:
                return walk_forward(call, receiver, "forward")
    cost = walk.costs.setdefault(function.node, Cost())
    spare = function.file.far and walk.far >= FAR_STATEMENT_LIMIT
    if spare or cost.spare():
        often = "is of a library of the project, of which enough was followed"
        walk.note(call.node, f"`{function.name}` {often if spare else 'is called too often to follow every call'}")
        escape(call, call.everything() if receiver is None else [receiver, *call.everything()])
        return _made_of(walk, call, walk.unknown())
    cost.walks += 1
    statements, events = walk.statements, walk.told
    scope = walk.new_scope(function.scope)
    walk.called_at[scope] = call.node
    owner = walk.classes.get(function.owner) if function.owner is not None else None
    frame = Frame(
        function.file, scope, walk.store.mark(), function, owner, receiver, on_yield=walk.next_yield, base=walk.path
    )
    walk.next_yield = None
    base = walk.path
    walk.walked.add(function.node)
    bind(walk, function, scope, call, receiver)
    walk.frames.append(frame)
    try:
        if isinstance(function.node, ast.Lambda):
            frame.returns.append(End(walk.path, {}, walk.evaluate(function.node.body)))
            return frame.returns[0].value or NONE
        if walk.execute(function.node.body):
            frame.returns.append(End(walk.path, walk.store.since(frame.mark), NONE))
        elif frame.yields and not frame.returns:  # a generator without end
            frame.returns.append(End(base, walk.store.since(frame.mark), NONE))
    finally:
        walk.frames.pop()
        cost.statements += walk.statements - statements
        cost.events += walk.told - events
    if not frame.returns:
        raise Stop
    walk.store.rollback(frame.mark)
    walk.path = base
    if scope not in walk.captured:  # its variables are gone
        for end in frame.returns:
            end.changes = {cell: value for cell, value in end.changes.items() if cell[0] != scope}
    if walk.asked:  # there are no questions otherwise
        _settle(frame.returns, len(base))
    shared = walk.resume(frame.returns)
    if frame.yields:
        return walk.new_list(frame.yields, exact=False)
    if len(frame.returns) > 1:
        for end in frame.returns:
            if end.value is not None and is_alone(walk, end.path[len(base) :]):
                end.value = _of_all(walk, end.value)
    return union([(end.path[shared:], end.value or NONE) for end in frame.returns])


def _of_all(walk: Walk, value: Value) -> Value:
    """What a process has that is alone: it cannot differ from rank to rank."""
    if isinstance(value, Tuple):
        return Tuple(tuple(_of_all(walk, item) for item in value.items))
    if isinstance(value, Union):
        return union([(path, _of_all(walk, v)) for path, v in value.members])
    if isinstance(value, Obj) and (content := walk.elements(value)) is not None:
        items = tuple(_of_all(walk, item) for item in content.items)
        return value if items == content.items else walk.new_list(items, exact=content.exact)
    return walk.sym() if isinstance(value, Sym) and (value.rank or walk.about(value) is not None) else value


def _settle(returns: list[End], before: int) -> None:
    """What all had to answer to come back is no question any more: whoever answered otherwise has raised."""
    asked = [{step for step in end.path[before:] if step.question is not None} for end in returns]
    if settled := set.intersection(*asked):
        for end in returns:
            end.path = tuple(dataclasses.replace(s, question=None) if s in settled else s for s in end.path)


def _is_overload(function: Function) -> bool:
    return not isinstance(function.node, ast.Lambda) and len(function.node.body) == 1 and (
        isinstance(only := function.node.body[0], ast.Expr)
        and isinstance(only.value, ast.Constant)
        and only.value.value is ...
    )  # fmt: skip


def _is_direct_forward(walk: Walk, node: ast.Call, caller: Value | None, receiver: Obj) -> bool:
    """Whether the call goes to `forward` itself, not by `super().forward(...)` or from the module's own methods."""
    owner = node.func.value if isinstance(node.func, ast.Attribute) else None
    through_super = isinstance(owner, ast.Call) and getattr(owner.func, "id", "") == "super"
    own = isinstance(owner, ast.Name) and caller == receiver and owner.id == "self"
    return not through_super and not own and not is_kept_forward(walk, node)


def is_kept_forward(walk: Walk, node: ast.Call) -> bool:
    """Whether the function called was handed over earlier: what calls it is often put in the place of `forward`."""
    if isinstance(node.func, ast.Attribute):
        return node.func.attr != "forward"
    return not (isinstance(node.func, ast.Name) and walk_cell(walk, node.func.id) == (walk.frame.scope, node.func.id))


def bind(walk: Walk, function: Function, scope: int, call: Call, receiver: Value | None) -> None:
    """Put the arguments of a call into the parameters."""
    spec = function.node.args
    positional = [*spec.posonlyargs, *spec.args]
    given = [receiver, *call.args] if receiver is not None else list(call.args)
    left = dict(call.kwargs)
    defaults = dict(function.defaults)
    for position, parameter in enumerate(positional):
        if position < len(given):
            value: Value | None = given[position]
        else:
            value = left.pop(parameter.arg, None) or (None if call.open else defaults.get(parameter.arg))
        walk.store.set((scope, parameter.arg), value or parameter_value(walk, parameter))
    for parameter in spec.kwonlyargs:
        value = left.pop(parameter.arg, None) or (None if call.open else defaults.get(parameter.arg))
        walk.store.set((scope, parameter.arg), value or parameter_value(walk, parameter))
    if spec.vararg is not None:
        rest = tuple(v for v in given[len(positional) :] if v is not None)
        walk.store.set((scope, spec.vararg.arg), walk.new_list(rest, exact=False) if call.open else Tuple(rest))
    if spec.kwarg is not None:
        named = [(Const(name), value) for name, value in left.items() if name != ""]
        walk.store.set((scope, spec.kwarg.arg), walk.new_dict(named, exact=not call.open))


_ANNOTATED = {
    "torch.nn.Module": What.MODULE,
    "torch.distributed.fsdp.FSDPModule": What.MODULE,
    "torch.optim.Optimizer": What.OPTIMIZER,
}


def parameter_value(walk: Walk, parameter: ast.arg) -> Value:
    """An argument that is not known: of its annotated role, when the annotation tells."""
    made = walk.unknown()
    walk.label(made, parameter.arg)
    annotation = parameter.annotation
    if isinstance(annotation, ast.Name | ast.Attribute):
        named = _annotation(walk, annotation)
        if isinstance(named, External):
            uses.annotated(walk, made, named)
            what = _ANNOTATED.get(named.name)
            if what is None and named.name.startswith("torch.optim.lr_scheduler."):
                what = What.SCHEDULER
            if what is None and named.name.startswith("torch.optim."):
                what = What.OPTIMIZER
            if what is not None:
                walk.take_role(made, what)
        elif isinstance(named, Class) and makes(named) is What.MODULE:
            walk.take_role(made, What.MODULE)
    return made


def _annotation(walk: Walk, node: ast.expr) -> Value | None:
    if isinstance(node, ast.Name):
        cell = walk_cell(walk, node.id) if walk.frames else None
        return walk.get(cell) if cell is not None else None
    if isinstance(node, ast.Attribute):
        outer = _annotation(walk, node.value)
        return attribute(walk, outer, node.attr, node) if isinstance(outer, External) else None
    return None


def define(walk: Walk, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda, owner: int | None = None) -> Function:
    """The function that a definition makes, its defaults evaluated."""
    spec = node.args
    positional = [*spec.posonlyargs, *spec.args]
    defaults = [
        (parameter.arg, walk.evaluate(value))
        for parameter, value in zip(positional[len(positional) - len(spec.defaults) :], spec.defaults, strict=True)
    ]
    defaults += [
        (parameter.arg, walk.evaluate(value))
        for parameter, value in zip(spec.kwonlyargs, spec.kw_defaults, strict=True)
        if value is not None
    ]
    name = "<lambda>" if isinstance(node, ast.Lambda) else node.name
    scope = walk.frame.scope if owner is None else walk.scopes[owner]
    assert scope is not None
    walk.captured.add(scope)
    return Function(node, scope, walk.frame.file, name, tuple(defaults), owner)


# --- classes of the program ---


def instantiate(walk: Walk, cls: Class, call: Call) -> Value:
    """Make an instance and walk its `__init__`."""
    from ..torch_api.modules import built

    what = makes(cls)
    obj = walk.new(what, cls)
    if what is What.MODULE:
        walk.modules[obj.id] = obj
    initialiser = find_method(walk, obj, "__init__")
    if isinstance(initialiser, Bound):
        with walk.restored("building", walk.building + (what is What.MODULE)):
            invoke(walk, initialiser.function, call, obj)
    elif cls.dataclass or any(isinstance(b, External) and b.name == "typing.NamedTuple" for b in cls.bases):
        _dataclass_init(walk, cls, obj, call)
    elif what is What.INSTANCE and not lineage(cls)[1]:
        escape(call, call.everything())
    if what is What.MODULE:
        built(call, obj, cls.name)
    elif what is What.OPTIMIZER:
        from ..torch_api.optimizers import built as optimizer_built

        optimizer_built(call, obj, cls.name)
    elif what is What.SCHEDULER:
        from ..torch_api.optimizers import scheduler_built

        scheduler_built(call, obj)
    return obj


def _dataclass_init(walk: Walk, cls: Class, obj: Obj, call: Call) -> None:
    fields: list[str] = []
    for base in reversed(lineage(cls)[0]):
        if isinstance(base, Class):
            fields += [
                s.target.id for s in base.node.body if isinstance(s, ast.AnnAssign) and isinstance(s.target, ast.Name)
            ]
    fields = list(dict.fromkeys(fields))
    for position, name in enumerate(fields):
        value = call.get(position, name)
        default = next((d for b in lineage(cls)[0] if isinstance(b, Class) and (d := walk.get((b.scope, name)))), None)
        known = value or (default if not call.open else None) or walk.unknown()
        walk.store.set((obj.id, "." + name), known)
    method = find_method(walk, obj, "__post_init__")
    if method is not None:
        call_value(walk, method, Call(walk, call.node, [], {}))


def _super(walk: Walk, args: list[ast.expr]) -> Value:
    """`super()`, which stands for the class and object of the method around it, or `super(cls, obj)`."""
    if args:
        cls, obj = walk.evaluate(args[0]), walk.evaluate(args[1])
        return Super(cls, obj) if isinstance(cls, Class) else walk.unknown()
    for frame in reversed(walk.frames):
        if frame.owner is not None and frame.receiver is not None:
            return Super(frame.owner, frame.receiver)
    return walk.unknown()


# --- library code ---

# Library code that reads what it is given and keeps nothing of it; the standard library too, but for what runs things.
_HARMLESS = (
    "torch.",
    "torchvision.transforms",
    "builtins.",
    "numpy.",
    "tqdm",
    "loguru.",
    "rich.",
    "wandb.log",
    "einops.",
    "psutil.",
)
_MAKE_DATASETS = ("torchvision.datasets.", "torchaudio.datasets.", "datasets.load_dataset", "datasets.load_from_disk")
_OF_PATHS = ("re.", "os.path.", "pathlib.")  # what they make of the names of files tells of the same files
_RUNNING = {"threading", "multiprocessing", "concurrent", "asyncio", "queue", "weakref", "sched", "runpy"}
_HARMFUL = (  # of torch, but it rewrites, keeps or runs what it is given
    "torch.ao.", "torch.quantization.", "torch.fx.", "torch.export.", "torch.onnx.", "torch.jit.", "torch.func.",
    "torch.distributed.pipelining.", "torch.distributed.elastic.", "torch.multiprocessing.",
    "torch.distributed.checkpoint.",
    "torch.distributed.rpc.", "torch.package.",
)  # fmt: skip


def call_library(call: Call, name: str) -> Value:
    """Call something of a library that no table knows."""
    walk = call.walk
    if name.startswith("torch.") and "device" in call.kwargs:
        _uses_accelerator(call)
    top = name.partition(".")[0]
    is_standard = top in sys.stdlib_module_names and top not in _RUNNING
    values = call.everything()
    division.called(call, name)
    passes.called(call, name)
    harmless = (is_standard or name.startswith(_HARMLESS)) and not name.startswith(_HARMFUL)
    if not harmless:
        endings.called(call, name)
        handed_on(call, name)
        escape(call, values)
        if top != "torch" and top not in sys.stdlib_module_names:
            walk.call_unseen()
            walk.note(call.node, f"`{name}` is of a library that the reader does not know")
    callbacks(call, values)
    if not is_standard:
        for value in values:
            contents.fill(walk, value)
    if name.startswith("torch.") and any(isinstance(v, Tensors) for v in values):
        return walk.sym()
    made = walk.unknown(External(name))
    if name.startswith(_MAKE_DATASETS) and not call.open and not any(division.differs(walk, v) for v in values):
        walk.establish(made, "whole")  # each rank has all of it
        if call.constant(None, "streaming") is not False and call.get(None, "streaming") is not None:
            walk.establish(made, "streamed")
    _made_of(walk, call, made)
    if name.startswith(_OF_PATHS):
        walk.answers(made.id, *values)
    if walk.meta and walk.meta[-1]:
        walk.establish(made, "made empty")
    return pass_on(walk, values, made)


def _made_of(walk: Walk, call: Call, made: Obj) -> Obj:
    """What a call gives that is not followed; one that is given something of the rank may give each rank its own."""
    if any(division.differs(walk, v) for v in call.everything()):
        walk.establish(made, "of rank")
    return made


def callbacks(call: Call, values: list[Value]) -> None:
    """Functions handed to library code: it may call them, so they are walked as one side of a branch."""
    walk = call.walk
    if len(walk.frames) > DEPTH_LIMIT // 2:
        return
    for value in values:
        for _, v in members(value):
            if isinstance(v, Function | Bound | Partial):
                perhaps_call(walk, v, call.node)


def perhaps_call(walk: Walk, function: Value, node: ast.AST, args: list[Value] | None = None) -> None:
    """Walk a function that may or may not be called here, with unknown arguments where none are given."""
    body = function.function if isinstance(function, Bound) else function
    if isinstance(body, Function) and body.node in walk.walked and isinstance(body.node, ast.Lambda):
        return
    condition = walk.fresh()

    def called() -> Value:
        return call_value(walk, function, Call(walk, node, args or [], {}, open=not args))

    walk.fork([((Step(condition, True),), (), called), ((Step(condition, False),), (), lambda: NONE)])
