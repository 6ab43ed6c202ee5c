"""Counts optimizer steps, takes the figures of each, and ends the rank after one if that was asked for."""

from __future__ import annotations

import os
import signal
import time
import weakref
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from .digest import digest, local_part
from .figures import StepFigures
from .modules import Modules, parameters
from .observer import Observer

MEETING_LIMIT = 60.0  # seconds that a rank waits for the others to reach the step after which all end


class Meter:
    """The steps of one rank, counted by the first optimizer that steps; the figures are of all optimizers."""

    def __init__(self, observer: Observer, modules: Modules, await_saves: Callable[[], None]) -> None:
        self._observer = observer
        self._modules = modules
        self._await_saves = await_saves
        self._optimizers: list[weakref.ref[Optimizer]] = []
        self._losses: list[float] = []
        self._grad_norm_sq = 0.0
        self._lrs: list[float] = []
        self._names: dict[int, str] = {}
        self._buffers: list[tuple[str, nn.Module, str]] | None = None

    @property
    def _wanted(self) -> bool:
        return self._observer.settings.figures

    def backward(self, roots: Any) -> None:
        """Take the values of the roots of a backward pass."""
        if not self._wanted:
            return
        for root in [roots] if isinstance(roots, torch.Tensor) else roots:
            local = local_part(root)
            if local is not None and local.numel() == 1:
                self._losses.append(float(local.item()))

    def before_step(self, optimizer: Optimizer) -> None:
        """Take what the step will consume."""
        if all(known() is not optimizer for known in self._optimizers):
            self._optimizers.append(weakref.ref(optimizer))
        if not self._wanted or not self._counts(optimizer):
            return
        if self._observer.steps == 0:
            self._write(StepFigures(0, [], 0.0, _lrs(self._living()), *self._state()))
        self._grad_norm_sq = _norm_sq(self._living())
        self._lrs = _lrs(self._living())

    def after_step(self, optimizer: Optimizer) -> None:
        """Count the step, write its figures, and end here if this is the last one wanted."""
        if not self._counts(optimizer):
            return
        self._observer.steps += 1
        if self._wanted:
            losses, self._losses = self._losses, []
            figures = StepFigures(self._observer.steps, losses, self._grad_norm_sq, self._lrs, *self._state())
            self._write(figures)
        self._observer.faults.stepped(self._observer.steps)
        if self._observer.steps == self._observer.settings.stop_after:
            self._stop()

    def _counts(self, optimizer: Optimizer) -> bool:
        return next((o for o in self._living()), None) is optimizer

    def _living(self) -> list[Optimizer]:
        return [o for known in self._optimizers if (o := known()) is not None]

    def _write(self, figures: StepFigures) -> None:
        self._observer.recorder.write({"note": "figures", "figures": figures.as_json()})

    def _state(self) -> tuple[dict[str, int], dict[str, int], dict[str, int], int]:
        """Digests of parameters, of optimizer state, of buffers, and of the generator."""
        weights: dict[str, int] = {}
        state: dict[str, int] = {}
        for parameter, optimizer in _parameters(self._living()):
            name = self._name(parameter)
            if (crc := digest(parameter)) is not None:
                weights[name] = crc
            for key, value in optimizer.state.get(parameter, {}).items():
                crc = digest(value) if isinstance(value, torch.Tensor) else zlib.crc32(repr(value).encode())
                if crc is not None:
                    state[f"{name}.{key}"] = crc
        if self._buffers is None:
            self._buffers = list(self._find_buffers())
        buffers: dict[str, int] = {}
        for name, module, key in self._buffers:
            buffer = module._buffers.get(key)  # anew each time: to assign to it puts another tensor there
            if buffer is not None and (crc := digest(buffer)) is not None:
                buffers[name] = crc
        rng = digest(torch.get_rng_state())
        assert rng is not None
        return weights, state, buffers, rng

    def _find_buffers(self) -> Iterator[tuple[str, nn.Module, str]]:
        """Name, owner and key of each persistent buffer of the models that the optimizers train."""
        trained = {id(parameter) for parameter, _ in _parameters(self._living())}
        models = [root for root in self._modules.roots() if any(id(p) in trained for p in parameters(root))]
        for number, root in enumerate(models):
            for prefix, module in root.named_modules():
                for key in module._buffers:
                    if key not in module._non_persistent_buffers_set:
                        fqn = f"{prefix}.{key}" if prefix else key
                        yield fqn if len(models) == 1 else f"{number}:{fqn}", module, key

    def _name(self, parameter: nn.Parameter) -> str:
        """The FQN of a parameter below the outermost module that holds it, its place in line where none does."""
        if id(parameter) not in self._names:
            roots = self._modules.roots()
            for number, root in enumerate(roots):
                for prefix, module in root.named_modules():
                    for key, held in module._parameters.items():
                        fqn = f"{prefix}.{key}" if prefix else key
                        if held is not None:
                            self._names.setdefault(id(held), fqn if self._unique(fqn) else f"{number}:{fqn}")
        return self._names.setdefault(id(parameter), f"parameter {len(self._names)}")

    def _unique(self, fqn: str) -> bool:
        return fqn not in self._names.values()

    def _stop(self) -> None:
        """End the rank as a crash would, once its saves are done and the other ranks have come as far."""
        self._await_saves()
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})  # the first to go must not end us
        settings = self._observer.settings
        settings.places.stopped(self._observer.rank).touch()
        until = time.monotonic() + MEETING_LIMIT
        others = range(settings.nproc)
        while time.monotonic() < until and not all(
            settings.places.stopped(r).exists() or settings.places.ended(r).exists() for r in others
        ):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)


def _parameters(optimizers: list[Optimizer]) -> Iterator[tuple[nn.Parameter, Optimizer]]:
    return ((p, o) for o in optimizers for group in o.param_groups for p in group["params"])


def _lrs(optimizers: list[Optimizer]) -> list[float]:
    return [float(group["lr"]) for o in optimizers for group in o.param_groups if "lr" in group]


def _norm_sq(optimizers: list[Optimizer]) -> float:
    total = 0.0
    for parameter, _ in _parameters(optimizers):
        gradient = parameter.grad
        if gradient is None or (local := local_part(gradient)) is None:
            continue
        with torch.no_grad():
            total += float(local.detach().double().square().sum().item())
    return total
