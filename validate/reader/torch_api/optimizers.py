"""Optimizers, schedulers, and the steps of the loop."""

from __future__ import annotations

import ast

from ...events import (
    Backward,
    Form,
    GradientsCleared,
    Kind,
    OptimizerBuilt,
    SchedulerBuilt,
    SchedulerStepped,
    StateTaken,
    Stepped,
    Via,
)
from ..values import NONE, Const, External, Obj, StateData, Tuple, Value, What, members
from ..walk import dtypes
from ..walk.calls import Call, call_value
from ..walk.core import Walk, owners
from ..walk.escapes import escape
from ..walk.lookup import ATTRIBUTES
from ..walk.reduced import reduced_before
from .losses import averaged, counts_alone
from .table import anything, api, method

_OPTIMIZERS = (
    "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "ASGD", "LBFGS", "Muon", "NAdam", "RAdam",
    "RMSprop", "Rprop", "SGD",
    "SparseAdam",
)  # fmt: skip
_SCHEDULERS = (
    "LambdaLR", "MultiplicativeLR", "StepLR", "MultiStepLR", "ConstantLR", "LinearLR", "ExponentialLR",
    "SequentialLR", "PolynomialLR",
    "CosineAnnealingLR", "ChainedScheduler", "ReduceLROnPlateau", "CyclicLR", "OneCycleLR",
    "CosineAnnealingWarmRestarts", "LRScheduler",
)  # fmt: skip
_OF_TRANSFORMERS = (
    "get_constant_schedule", "get_constant_schedule_with_warmup", "get_linear_schedule_with_warmup",
    "get_cosine_schedule_with_warmup", "get_cosine_with_hard_restarts_schedule_with_warmup",
    "get_polynomial_decay_schedule_with_warmup", "get_inverse_sqrt_schedule", "get_wsd_schedule",
    "get_cosine_with_min_lr_schedule_with_warmup",
)  # fmt: skip


def _make(call: Call, cls: str) -> Value:
    optimizer = call.walk.new(What.OPTIMIZER, External("torch.optim." + cls))
    built(call, optimizer, cls)
    return optimizer


@api(*(f"torch.optim.{cls}" for cls in _OPTIMIZERS))
def _optimizer(call: Call) -> Value:
    return _make(call, call.name.rpartition(".")[2])


@api(
    "bitsandbytes.optim.AdamW8bit",
    "bitsandbytes.optim.AdamW",
    "bitsandbytes.optim.Adam8bit",
    "torchao.optim.AdamW8bit",
    "torchao.optim.AdamW4bit",
)
def _quantized(call: Call) -> Value:
    return _make(call, "AdamW")


def built(call: Call, optimizer: Obj, cls: str) -> None:
    """An optimizer was constructed."""
    walk = call.walk
    given = call.get(0, "params")
    modules = [m for m in owners(given, walk) if walk.what(m) is What.MODULE] if given is not None else []
    walk.emit(
        OptimizerBuilt,
        call.node,
        optimizer=walk.ref(optimizer),
        cls=cls,
        modules=tuple(walk.ref(m) for m in modules),
        stateless=cls == "SGD" and not call.open and call.constant(2, "momentum") in (None, 0, 0.0)
        and call.get(2, "momentum") is None,
        dtype=_dtype(call, modules),
        given=tuple(walk.name(m) for m in modules) if call.name.startswith("torch.optim.") else (),
    )  # fmt: skip
    walk.store.set((optimizer.id, "%modules"), walk.new_list(modules))


def _dtype(call: Call, modules: list[Obj]) -> str | None:
    """The dtype of all parameters given to an optimizer of torch's own, None where not known."""
    if not call.name.startswith("torch.optim."):
        return None
    found = {dtypes.dtype_of(call.walk, module) for module in modules}
    return found.pop() if len(found) == 1 else None


def managed(walk: Walk, optimizer: Obj) -> list[Obj]:
    """The modules whose parameters the optimizer was given."""
    held = walk.store.get((optimizer.id, "%modules"))
    content = walk.elements(held) if isinstance(held, Obj) else None
    return [v for v in content.items if isinstance(v, Obj)] if content is not None else []


def optimizer_form(walk: Walk, optimizer: Obj) -> Form:
    """How its state lies across the ranks: as the parameters do."""
    forms = {walk.form_of(module) for module in managed(walk, optimizer)}
    return forms.pop() if len(forms) == 1 else Form.UNKNOWN


@api(
    *(f"torch.optim.lr_scheduler.{cls}" for cls in _SCHEDULERS),
    *(f"transformers.{name}" for name in _OF_TRANSFORMERS),
    *(f"transformers.optimization.{name}" for name in _OF_TRANSFORMERS),
)
def _scheduler(call: Call) -> Value:
    return _make_scheduler(call, 0)


@api("transformers.get_scheduler", "transformers.optimization.get_scheduler")
def _scheduler_by_name(call: Call) -> Value:
    return _make_scheduler(call, 1)


def _make_scheduler(call: Call, position: int) -> Value:
    scheduler = call.walk.new(What.SCHEDULER, External("torch.optim.lr_scheduler.LRScheduler"))
    scheduler_built(call, scheduler, position)
    return scheduler


def scheduler_built(call: Call, scheduler: Obj, position: int = 0) -> None:
    """A scheduler was constructed; its optimizer is the argument at `position`."""
    walk = call.walk
    optimizers = as_optimizers(walk, call.get(position, "optimizer"))
    over = walk.ref(optimizers[0]) if len(optimizers) == 1 else None
    walk.emit(SchedulerBuilt, call.node, scheduler=walk.ref(scheduler), optimizer=over)
    if call.get(None, "last_epoch") not in (None, Const(-1)):  # the program keeps count itself
        escape(call, [scheduler])


@method(What.SCHEDULER, "step")
def _scheduler_step(call: Call, scheduler: Obj) -> Value:
    call.walk.emit(SchedulerStepped, call.node, scheduler=call.walk.ref(scheduler))
    if call.everything():  # the count, or what it goes by, comes from the program
        escape(call, [scheduler])
    return NONE


def _scheduler_count(walk: Walk, scheduler: Obj, node: ast.AST) -> Value:
    if scheduler != walk.frame.receiver:
        walk.escape(node, scheduler)  # the program may keep the count in its own way
    return walk.sym("count", scheduler)


for _name in ("last_epoch", "_step_count"):
    ATTRIBUTES[(What.SCHEDULER, _name)] = _scheduler_count


def as_optimizers(walk: Walk, value: Value | None) -> list[Obj]:
    """The optimizers that a value given for one is; an unknown object is one from now on."""
    found: list[Obj] = []
    for v in _flat(walk, value):
        if v.what is What.OPAQUE:
            walk.take_role(v, What.OPTIMIZER)
        if walk.what(v) is What.OPTIMIZER:
            found.append(v)
    return found


def _flat(walk: Walk, value: Value | None) -> list[Obj]:
    found: list[Obj] = []
    for _, v in members(value) if value is not None else ():
        if isinstance(v, Obj) and (content := walk.elements(v)) is not None:
            found += [item for element in content.items for item in _flat(walk, element)]
        elif isinstance(v, Tuple):
            found += [item for element in v.items for item in _flat(walk, element)]
        elif isinstance(v, Obj):
            found.append(v)
    return found


@method(What.OPTIMIZER, "step")
def _step(call: Call, optimizer: Obj) -> Value:
    _stepped(call, optimizer)
    return NONE


def _stepped(call: Call, optimizer: Obj) -> None:
    """The optimizer steps, once what was to run before a step has run."""
    walk = call.walk
    within = walk.frame.function
    if within is not None and within.name == "step" and walk.frame.receiver == optimizer:
        return  # `super().step()`, of which the call that led here tells
    hooks = walk.store.get((optimizer.id, "%before"))
    for hook in hooks.items if isinstance(hooks, Tuple) else ():
        call_value(walk, hook, Call(walk, call.node, [optimizer, walk.unknown(), walk.unknown()], {}))
    walk.emit(Stepped, call.node, optimizer=walk.ref(optimizer))


@method(What.OPTIMIZER, "register_step_pre_hook")
def _before_steps(call: Call, optimizer: Obj) -> Value:
    walk = call.walk
    known = walk.store.get((optimizer.id, "%before"))
    hooks = (*(known.items if isinstance(known, Tuple) else ()), *call.args[:1])
    walk.store.set((optimizer.id, "%before"), Tuple(hooks))
    return walk.unknown()


@method(What.OPTIMIZER, "zero_grad")
def _zero_grad(call: Call, optimizer: Obj) -> Value:
    call.walk.emit(GradientsCleared, call.node, of=call.walk.ref(optimizer))
    return NONE


@method(What.OPTIMIZER, "add_param_group")
def _add_group(call: Call, optimizer: Obj) -> Value:
    walk = call.walk
    more = [m for value in call.everything() for m in owners(value, walk)]
    walk.store.set((optimizer.id, "%modules"), walk.new_list([*managed(walk, optimizer), *more]))
    return NONE


@anything("backward")
def _backward(call: Call, receiver: Value) -> Value | None:
    func = call.node.func if isinstance(call.node, ast.Call) else None
    if (isinstance(receiver, Obj) and receiver.what not in (What.OPAQUE, What.STATE)) or not isinstance(
        func, ast.Attribute
    ):
        return None
    walk = call.walk
    walk.emit(
        Backward,
        call.node,
        of=reduced_before(walk, receiver),
        averaged=averaged(walk, receiver) if not call.everything() else None,
        counted_alone=counts_alone(walk, receiver),
    )
    return NONE


@api("torch.autograd.backward")
def _autograd_backward(call: Call) -> Value:
    given = call.get(0, "tensors")
    call.walk.emit(Backward, call.node, of=reduced_before(call.walk, given) if given is not None else ())
    return NONE


@api("torch.amp.GradScaler", "torch.cuda.amp.GradScaler", "torch.amp.grad_scaler.GradScaler")
def _scaler(call: Call) -> Value:
    return call.walk.unknown(External("torch.amp.GradScaler"))


@anything("step")
def _scaler_step(call: Call, _receiver: Value) -> Value | None:
    """`scaler.step(optimizer)`."""
    walk = call.walk
    optimizers = [v for value in call.args[:1] for v in _flat(walk, value) if walk.what(v) is What.OPTIMIZER]
    for optimizer in optimizers:
        _stepped(call, optimizer)
    return NONE if optimizers else None


def _state(call: Call, obj: Obj, kind: Kind, form: Form) -> Value:
    walk = call.walk
    aliased = True if form is Form.SHARDED else None
    state = walk.new(What.STATE, data=StateData((obj,), kind, form, Via.METHOD, False, False, aliased))
    walk.emit(StateTaken, call.node, of=(walk.ref(obj),), state=walk.ref(state), via=Via.METHOD)
    return state


@method(What.OPTIMIZER, "state_dict")
def _optimizer_state(call: Call, optimizer: Obj) -> Value:
    return _state(call, optimizer, Kind.OPTIMIZER, optimizer_form(call.walk, optimizer))


@method(What.SCHEDULER, "state_dict")
def _scheduler_state(call: Call, scheduler: Obj) -> Value:
    return _state(call, scheduler, Kind.SCHEDULER, Form.PLAIN)


@method(What.LOADER, "state_dict")
def _loader_state(call: Call, loader: Obj) -> Value:
    return _state(call, loader, Kind.LOADER, Form.PLAIN)
