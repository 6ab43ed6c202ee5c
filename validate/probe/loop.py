"""Hooks on the training loop: optimizers, schedulers, backward, clipping, steps."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from ..events import (
    Backward,
    GradientsCleared,
    GradientsClipped,
    OptimizerBuilt,
    SchedulerBuilt,
    SchedulerStepped,
    Stepped,
)
from .data import Passes
from .entries import Reader
from .frames import on_behalf_of_helpers, program_frame
from .measure import Meter
from .modules import Modules, dtype_name
from .observer import Call, Handler, Observer
from .reductions import Reductions
from .sharding import Forwards
from .states import scheduler_classes
from .updates import Look, Updates
from .weights import Weights

_MEAN = 1  # what torch calls the mean in the nodes of its graph


def parameters_of(optimizer: Optimizer) -> list[nn.Parameter]:
    """All parameters that an optimizer was given."""
    return [p for group in optimizer.param_groups for p in group["params"]]


def install(
    observer: Observer,
    modules: Modules,
    forwards: Forwards,
    meter: Meter,
    reader: Reader,
    reduced: Reductions,
    passes: Passes,
) -> None:
    """Hook what this module is about."""
    clipped_before: dict[tuple[int, int, int], tuple[Any, ...]] = {}
    updates, weights = Updates(), Weights()
    looks: dict[int, tuple[int, Look]] = {}  # by the optimizer's id: its step under way

    def optimizer_built(call: Call) -> Handler:
        yield
        optimizer = call.args[0]
        reader.optimizer(optimizer)
        meter.built(optimizer)
        frame = program_frame(building=optimizer)
        refs = tuple(modules.ref(m, frame) for m in modules.owning(parameters_of(optimizer)))
        plain = type(optimizer) is torch.optim.SGD and all(not g.get("momentum") for g in optimizer.param_groups)
        ref = observer.ref(optimizer, frame, type(optimizer).__name__)
        observer.emit(
            OptimizerBuilt,
            frame,
            optimizer=ref,
            cls=type(optimizer).__name__,
            modules=refs,
            stateless=plain,
            dtype=dtype(optimizer),
            given=modules.names(parameters_of(optimizer)) if type(optimizer).__module__.startswith("torch.") else (),
        )

    def dtype(optimizer: Optimizer) -> str | None:
        """The dtype of all that one of torch's own optimizers steps, None where they are several."""
        own = type(optimizer).__module__.startswith("torch.optim.")
        found = {dtype_name(p.dtype) for p in parameters_of(optimizer) if p.requires_grad}
        return found.pop() if own and len(found) == 1 else None

    def scheduler_built(call: Call) -> Handler:
        yield
        scheduler = call.args[0]
        if observer.identities.known(scheduler) is not None:
            return  # the constructor of a subclass, whose base class has reported it
        frame = program_frame(building=scheduler)
        optimizer = getattr(scheduler, "optimizer", None)
        observer.emit(
            SchedulerBuilt,
            frame,
            scheduler=observer.ref(scheduler, frame, type(scheduler).__name__),
            optimizer=None if optimizer is None else observer.ref(optimizer, frame, type(optimizer).__name__),
        )

    def scheduler_stepped(call: Call) -> Handler:
        yield
        scheduler = call.args[0]
        count = getattr(scheduler, "last_epoch", None)
        observer.emit(
            SchedulerStepped,
            call.frame,
            scheduler=observer.ref(scheduler, call.frame, type(scheduler).__name__),
            count=count if isinstance(count, int) else None,
        )

    def backward(call: Call) -> Handler:
        forwards.forget_call()
        passes.trained()
        losses = call.args[0] if call.args else call["tensors"]
        order = observer.emit(
            Backward, call.frame, of=reduced.before(losses), averaged=_averaged(losses), low=low_entropy(losses)
        )
        if (weight := weights.of(losses)) is not None:
            observer.recorder.write({"note": "weight", "order": order, **dataclasses.asdict(weight)})
        meter.backward(losses)
        yield

    def clipped(call: Call) -> Handler:
        given = call["parameters"]
        if given is None:
            yield
            return
        listed = [given] if isinstance(given, torch.Tensor) else list(given)
        if call.args:  # a generator is used up by listing it
            call.args = (listed, *call.args[1:])
        else:
            call.kwargs["parameters"] = listed
        key = (len(listed), id(listed[0]), id(listed[-1])) if listed else (0, 0, 0)
        if key not in clipped_before:
            clipped_before[key] = tuple(modules.ref(m, call.frame) for m in modules.owning(listed))
        meter.before_clip(listed)
        sharded = any(isinstance(p, DTensor) for p in listed)
        order = observer.emit(
            GradientsClipped, call.frame, modules=clipped_before[key], sharded=sharded, mixed=_mixed(listed)
        )
        if sharded:
            observer.entered(order)
        yield
        if sharded:
            observer.returned(order)

    def cleared(call: Call) -> Handler:
        of = call.args[0]
        ref = modules.ref(of, call.frame) if isinstance(of, nn.Module) else observer.ref(of, call.frame, "optimizer")
        observer.emit(GradientsCleared, call.frame, of=ref)
        yield

    def of_program() -> bool:
        """Whether the step under way is one of the program's."""
        return observer.recorder.own and not torch.compiler.is_compiling() and not on_behalf_of_helpers()

    def before_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if not of_program():
            return
        try:
            meter.before_step(optimizer)
            frame = program_frame()
            ref = observer.ref(optimizer, frame, type(optimizer).__name__)
            order = observer.emit(Stepped, frame, optimizer=ref)
            looks.pop(id(optimizer), None)
            by_itself = len(args) < 2 and not kwargs.get("closure")  # a closure makes the gradients within the step
            if by_itself and (look := updates.before(optimizer)) is not None:
                looks[id(optimizer)] = order, look
        except Exception:
            observer.failed()

    def after_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:  # noqa: ARG001 - torch's signature
        if not of_program():
            return
        try:
            if (looked := looks.pop(id(optimizer), None)) is not None:
                order, look = looked
                changed = updates.after(optimizer, look)
                note = {"note": "updated", "order": order, "changed": changed, "gradients": look.gradients}
                observer.recorder.write(note)
            counted = meter.after_step(optimizer)
        except Exception:
            observer.failed()
            return
        if counted:
            observer.faults.send_signal(observer.steps)  # here, where nothing catches what its handler raises

    observer.wrap([Optimizer], "__init__", optimizer_built, by_program=False)
    for cls in scheduler_classes():
        if "__init__" in vars(cls):
            observer.wrap([cls], "__init__", scheduler_built, by_program=False)
        if "step" in vars(cls):
            observer.wrap([cls], "step", scheduler_stepped)
    observer.wrap([torch.Tensor], "backward", backward)
    observer.wrap([torch.autograd], "backward", backward)
    observer.wrap([nn.utils, nn.utils.clip_grad], "clip_grad_norm_", clipped)
    observer.wrap([Optimizer], "zero_grad", cleared)
    observer.wrap([nn.Module], "zero_grad", cleared)
    register_optimizer_step_pre_hook(before_step)
    register_optimizer_step_post_hook(after_step)


def _averaged(loss: Any) -> bool | None:
    """Whether a loss is a mean and nothing else; None where it was made in another way."""
    made_by = loss.grad_fn if isinstance(loss, torch.Tensor) else None
    name = type(made_by).__name__
    if name in ("NllLossBackward0", "MseLossBackward0"):
        return getattr(made_by, "_saved_reduction", None) == _MEAN or None
    return name == "MeanBackward0" or None


def low_entropy(loss: Any) -> str | None:
    """The dtype of a loss of fewer than 32 bits that is a cross entropy, scaled perhaps; None for any other."""
    if not isinstance(loss, torch.Tensor) or loss.dtype not in (torch.bfloat16, torch.float16):
        return None
    node = loss.grad_fn
    while node is not None and node.name() in ("DivBackward0", "MulBackward0"):
        node = next((scaled for scaled, _ in node.next_functions if scaled is not None), None)
    return dtype_name(loss.dtype) if node is not None and node.name().startswith("NllLoss") else None


def _mixed(parameters: list[torch.Tensor]) -> bool:
    """Whether the gradients lie on several meshes, or some on none."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    return len({g.device_mesh if isinstance(g, DTensor) else None for g in gradients}) > 1
