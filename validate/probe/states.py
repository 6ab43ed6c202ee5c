"""Hooks on state dicts: what they were taken from and what they were given to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint import state_dict as helpers
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer, lr_scheduler
from torch.optim.lr_scheduler import LRScheduler

from ..events import Form, Kind, Ref, StateApplied, StateTaken, Via
from ..wrappers import plain_name
from .beginnings import Beginnings
from .identity import Dictionaries
from .modules import Modules
from .observer import Call, Handler, Observer


class Taken:
    """Which state dict was taken from which object, and how."""

    def __init__(self) -> None:
        self._dictionaries = Dictionaries()

    def set(self, state: dict[str, Any], kind: Kind, of: Ref, via: Via) -> None:
        """Remember a state dict."""
        self._dictionaries.set(state, (kind, of, via))

    def get(self, state: dict[str, Any]) -> tuple[Kind, Ref, Via] | None:
        """Kind, object and way of a state dict that was seen being taken."""
        found: tuple[Kind, Ref, Via] | None = self._dictionaries.get(state)
        return found


def scheduler_classes() -> list[type[LRScheduler]]:
    """Torch's learning-rate schedulers; several have methods of their own instead of their base class's."""
    return [c for c in vars(lr_scheduler).values() if isinstance(c, type) and issubclass(c, LRScheduler)]


def install(observer: Observer, modules: Modules, taken: Taken, beginnings: Beginnings) -> None:
    """Hook what this module is about."""

    def ref(value: object, call: Call) -> Ref:
        if isinstance(value, nn.Module):
            return modules.ref(value, call.frame)
        return observer.ref(value, call.frame, type(value).__name__)

    def kind(value: object) -> Kind:
        if isinstance(value, nn.Module):
            return Kind.MODEL
        return Kind.OPTIMIZER if isinstance(value, Optimizer) else Kind.SCHEDULER

    def taking(call: Call, parts: list[tuple[object, Kind]], via: Via) -> Handler:
        """One event for each dictionary that the call returns."""
        options = call["options"] if via is Via.HELPER else None
        full = bool(getattr(options, "full_state_dict", False))
        offload = bool(getattr(options, "cpu_offload", False))
        entered = []
        for value, what in parts:
            values = value if isinstance(value, (list, tuple)) else (value,)
            of = tuple(ref(v, call) for v in values)
            state = observer.identities.new("state")
            order = observer.emit(StateTaken, call.frame, of=of, state=state, via=via, full=full, offload=offload)
            if full:
                observer.entered(order)
            entered.append((order, of[0], state, what))
        result = yield
        states = result if len(parts) > 1 else (result,)
        for (order, of_first, state, what), dictionary in zip(entered, states, strict=True):
            if full:
                observer.returned(order)
            observer.identities.bind(dictionary, state)
            taken.set(dictionary, what, of_first, via)

    def applying(call: Call, objects: list[Any], states: list[Any], via: Via) -> Handler:
        options = call["options"] if via is Via.HELPER else None
        full = bool(getattr(options, "full_state_dict", False))
        orders = []
        for value, state in zip(objects, states, strict=True):
            values = value if isinstance(value, (list, tuple)) else (value,)
            order = observer.emit(
                StateApplied,
                call.frame,
                to=tuple(ref(v, call) for v in values),
                state=observer.ref(state, call.frame, "state") if isinstance(state, dict) else None,
                via=via,
                full=full,
                **_given(call, value, state),
            )
            orders.append(order)
            if full:
                observer.entered(order)
        apart = full and not getattr(options, "broadcast_from_rank0", False)
        whole = [
            (value, beginnings.brought(state))
            for value, state in zip(objects, states, strict=True)
            if apart and isinstance(value, nn.Module) and isinstance(state, Mapping)
        ]
        yield
        if full:
            for order in orders:
                observer.returned(order)
            for model, brought in whole:
                beginnings.given(model, brought)

    def model_taken(call: Call) -> Handler:
        return taking(call, [(call["model"], Kind.MODEL)], Via.HELPER)

    def optimizer_taken(call: Call) -> Handler:
        return taking(call, [(call["optimizers"], Kind.OPTIMIZER)], Via.HELPER)

    def both_taken(call: Call) -> Handler:
        return taking(call, [(call["model"], Kind.MODEL), (call["optimizers"], Kind.OPTIMIZER)], Via.HELPER)

    def model_applied(call: Call) -> Handler:
        return applying(call, [call["model"]], [call["model_state_dict"]], Via.HELPER)

    def optimizer_applied(call: Call) -> Handler:
        return applying(call, [call["optimizers"]], [call["optim_state_dict"]], Via.HELPER)

    def both_applied(call: Call) -> Handler:
        objects = [call["model"], call["optimizers"]]
        return applying(call, objects, [call["model_state_dict"], call["optim_state_dict"]], Via.HELPER)

    def method_taken(call: Call) -> Handler:
        return taking(call, [(call.args[0], kind(call.args[0]))], Via.METHOD)

    def method_applied(call: Call) -> Handler:
        return applying(call, [call.args[0]], [call["state_dict"]], Via.METHOD)

    observer.wrap([helpers], "get_model_state_dict", model_taken)
    observer.wrap([helpers], "get_optimizer_state_dict", optimizer_taken)
    observer.wrap([helpers], "get_state_dict", both_taken)
    observer.wrap([helpers], "set_model_state_dict", model_applied)
    observer.wrap([helpers], "set_optimizer_state_dict", optimizer_applied)
    observer.wrap([helpers], "set_state_dict", both_applied)
    for owner in (nn.Module, Optimizer, *scheduler_classes()):
        if "state_dict" in vars(owner):
            observer.wrap([owner], "state_dict", method_taken)
        if "load_state_dict" in vars(owner):
            observer.wrap([owner], "load_state_dict", method_applied)


def _given(call: Call, value: object, state: object) -> dict[str, Any]:
    """The fields of the event that tell of the state dict given to an object, and how."""
    options = call["options"]
    fields: dict[str, Any] = {
        "broadcast": bool(getattr(options, "broadcast_from_rank0", False)),
        "strict": bool(getattr(options, "strict", True)) if options is not None else call["strict"] is not False,
        "assign": call["assign"] is True,
    }
    if not isinstance(state, Mapping) or not isinstance(value, nn.Module):
        return fields
    parameters = {plain_name(name): p for name, p in value.named_parameters(remove_duplicate=False)}
    given = {plain_name(str(name)): tensor for name, tensor in state.items()}
    fields["empty"] = not given
    if given and not fields["strict"]:
        fields["missed"] = bool(parameters) and not any(name in parameters for name in given)
    for name, parameter in parameters.items():
        if isinstance(parameter, DTensor) and isinstance(given.get(name), torch.Tensor):
            fields["form"] = _form(given[name], parameter)
            break
    return fields


def _form(tensor: torch.Tensor, parameter: DTensor) -> Form:
    if isinstance(tensor, DTensor):
        return Form.SHARDED
    return Form.FULL if tensor.shape == parameter.shape else Form.UNKNOWN
