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
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from . import figures, parts
from .batches import Batches
from .beside import Beside
from .digest import digest, local_part
from .figures import StepFigures
from .frames import program_frame
from .modules import Modules, parameters
from .observer import Observer
from .owned import owned

MEETING_LIMIT = 60.0  # seconds that a rank waits for the others to reach the step after which all end


class Meter:
    """The steps of one rank, counted by the first optimizer that steps; the figures are of all optimizers."""

    def __init__(self, observer: Observer, modules: Modules, await_saves: Callable[[], None]) -> None:
        self._observer = observer
        self._modules = modules
        self._await_saves = await_saves
        self._optimizers: list[weakref.ref[Optimizer]] = []  # that have stepped, in the order of their first
        self._built: list[weakref.ref[Optimizer]] = []
        self._batches = Batches()
        self._beside = Beside(modules)
        self._clipped: dict[int, float | None] = {}  # by the parameter's id: its gradient's share before clipping
        self._grad_share: float | None = None
        self._began: dict[str, Any] | None = None  # parts of the buffers before the first forward after the step
        self._losses: list[float] = []
        self._grad_norm_sq = 0.0
        self._lrs: list[float] = []
        self._names: dict[int, str] = {}
        self._buffers: list[tuple[str, nn.Module, str]] | None = None

    @property
    def _wanted(self) -> bool:
        return self._observer.settings.probe.figures

    def built(self, optimizer: Optimizer) -> None:
        """Know an optimizer from its beginning: what a checkpoint gave it is there before it steps."""
        self._built = [known for known in self._built if known() is not None]
        self._built.append(weakref.ref(optimizer))

    def before_forward(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Take what the program gives to the model, and the buffers, which the forward may change."""
        if not self._wanted or not torch.is_grad_enabled():
            return
        self._batches.entered(module, args, kwargs)
        if self._observer.steps == self._observer.settings.probe.whole_after and not self._losses:
            self._began = parts.parts(self._persistent_buffers())

    def before_clip(self, given: list[torch.Tensor]) -> None:
        """Take the gradients as they are before they are clipped."""
        if self._wanted:
            self._clipped.update({id(p): self._share(p, _square(p.grad)) for p in given if id(p) not in self._clipped})

    def backward(self, roots: Any) -> None:
        """Take the values of the roots of a backward pass."""
        if not self._wanted:
            return
        self._batches.backward()
        self._clipped = {}
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
            began = StepFigures(0, [], 0.0, _lrs(self._known()), *self._state())
            self._write(began)
            if self._at_the_end(began):
                self._stop()
        if self._observer.steps == self._observer.settings.probe.whole_after:
            self._take_whole(self._began)
        squares = [(p, _square(p.grad)) for p, _ in _parameters(self._known())]
        shares = [self._clipped.get(id(p), self._share(p, square)) for p, square in squares]
        self._grad_share = None if None in shares else sum(share for share in shares if share is not None)
        self._clipped = {}
        self._grad_norm_sq = sum(square for _, square in squares)
        self._lrs = _lrs(self._known())

    def after_step(self, optimizer: Optimizer) -> bool:
        """Count the step, write its figures, and end here if this is the last one wanted; whether it counts."""
        if not self._counts(optimizer):
            return False
        self._observer.steps += 1
        ends = self._observer.steps == self._observer.settings.probe.stop_after
        if self._wanted:
            losses, self._losses = self._losses, []
            done = StepFigures(
                self._observer.steps,
                losses,
                self._grad_norm_sq,
                self._lrs,
                *self._state(),
                self._grad_share,
                *self._batches.take(),
                self._beside.take(self._known(), program_frame()),
            )
            self._write(done)
            ends = ends or self._at_the_end(done)
            if self._observer.steps == 1:
                self._write_owned()
        if self._wanted and self._observer.steps == self._observer.settings.probe.whole_after:
            self._take_whole(None)
        self._observer.faults.stepped(self._observer.steps)
        if ends:
            self._stop()
        return True

    def _at_the_end(self, now: StepFigures) -> bool:
        """Whether the program has come to where the run ended that this one is to end with."""
        ends = self._observer.settings.probe.stop_at
        return bool(ends) and figures.digest(now.params) == ends[self._observer.rank]

    def _counts(self, optimizer: Optimizer) -> bool:
        return next((o for o in self._living()), None) is optimizer

    def _living(self) -> list[Optimizer]:
        return [o for known in self._optimizers if (o := known()) is not None]

    def _known(self) -> list[Optimizer]:
        """Those that have stepped, then those that may."""
        living = self._living()
        built = [o for known in self._built if (o := known()) is not None]
        return [*living, *(o for o in built if all(o is not other for other in living))]

    def _take_whole(self, buffers: dict[str, Any] | None) -> None:
        """Write the parts that this rank has of the whole state."""
        held = [(self._name(p), p, o.state.get(p, {})) for p, o in _parameters(self._known())]
        tensors = (
            (f"{name}.{key}", value)
            for name, _, state in held
            for key, value in state.items()
            if isinstance(value, torch.Tensor)
        )
        note = {
            "note": "whole",
            "step": self._observer.steps,
            "parts": {
                "parameters": parts.parts(((name, p) for name, p, _ in held), casts=True),
                "optimizer state": parts.parts(tensors),
                "buffers": parts.parts(self._persistent_buffers()) if buffers is None else buffers,
                "weights beside": parts.parts(self._beside.shards(self._known(), program_frame())),
            },
            "others": {f"{name}.{k}": crc for name, _, state in held for k, crc in parts.plain(state).items()},
            "names": self._all_names({id(p): name for name, p, _ in held}),
        }
        self._observer.recorder.write(note)

    def _all_names(self, named: dict[int, str]) -> dict[str, list[tuple[int, str]]]:
        """Every FQN of each parameter, with its model's number, by the name it goes by: a tied one has several."""
        found: dict[str, list[tuple[int, str]]] = {name: [] for name in named.values()}
        for number, root in enumerate(self._modules.roots()):
            for prefix, module in root.named_modules():
                for key, held in module._parameters.items():
                    if held is not None and id(held) in named:
                        found[named[id(held)]].append((number, f"{prefix}.{key}" if prefix else key))
        return found

    def _persistent_buffers(self) -> Iterator[tuple[str, torch.Tensor]]:
        return ((name, b) for name, m, key in self._find_buffers() if (b := m._buffers.get(key)) is not None)

    def _share(self, parameter: torch.Tensor, square: float) -> float | None:
        """The square of the norm of a gradient, divided by the number of ranks that hold the same part of it."""
        gradient = parameter.grad
        copies = self._observer.settings.nproc
        if isinstance(gradient, DTensor):
            if any(placement.is_partial() for placement in gradient.placements):
                return None
            for dim, placement in enumerate(gradient.placements):
                if not placement.is_replicate():
                    copies //= gradient.device_mesh.size(dim)
        return square / max(1, copies)

    def _write(self, figures: StepFigures) -> None:
        self._observer.recorder.write({"note": "figures", "time": time.monotonic(), "figures": figures.as_json()})

    def _write_owned(self) -> None:
        """Write what this rank has of each module, once the first step has made the optimizer's state."""
        held = {id(p): o.state.get(p, {}) for p, o in _parameters(self._known())}
        self._observer.recorder.write({"note": "owned", "of": owned(self._models(), held)})

    def _state(self) -> tuple[dict[str, int], dict[str, int], dict[str, int], int]:
        """Digests of parameters, of optimizer state, of buffers, and of the generator."""
        weights: dict[str, int] = {}
        state: dict[str, int] = {}
        for parameter, optimizer in _parameters(self._known()):
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
        self._beside.were(weights.values())
        rng = digest(torch.get_rng_state())
        assert rng is not None
        return weights, state, buffers, rng

    def _models(self) -> list[nn.Module]:
        """The models that the optimizers train."""
        trained = {id(parameter) for parameter, _ in _parameters(self._known())}
        return [root for root in self._modules.roots() if any(id(p) in trained for p in parameters(root))]

    def _find_buffers(self) -> Iterator[tuple[str, nn.Module, str]]:
        """Name, owner and key of each persistent buffer of the models that the optimizers train."""
        models = self._models()
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
    """Each parameter with the optimizer that steps it, the first of them where several do."""
    seen = set[int]()
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if id(parameter) not in seen:
                    seen.add(id(parameter))
                    yield parameter, optimizer


def _lrs(optimizers: list[Optimizer]) -> list[float]:
    return [float(group["lr"]) for o in optimizers for group in o.param_groups if "lr" in group]


def _square(gradient: torch.Tensor | None) -> float:
    """The sum of squares of this rank's part of a gradient; 0.0 where there is none, or it cannot be read."""
    if gradient is None or (local := local_part(gradient)) is None:
        return 0.0
    with torch.no_grad():
        return float(torch.linalg.vector_norm(local.detach(), dtype=torch.float64).item()) ** 2
