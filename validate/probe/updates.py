"""Whether the steps of an optimizer change anything: looked at until one has."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import torch
from torch import nn
from torch.optim import Optimizer

from .digest import local_part
from .identity import Objects

_SAMPLE = 256  # elements of a parameter that are looked at, beside the one with the largest gradient


@dataclass(frozen=True)
class Look:
    """What a rank's parts of the parameters held before a step."""

    at: list[tuple[nn.Parameter, int | None, int]]  # with the place of the largest gradient, and a digest
    gradients: bool

    def changed(self) -> bool:
        """Whether any of them holds something else by now."""
        return any(_digest(parameter, place) != crc for parameter, place, crc in self.at)


class Updates:
    """The optimizers that have changed something."""

    def __init__(self) -> None:
        self._moving = Objects()

    def before(self, optimizer: Optimizer) -> Look | None:
        """Look at what the step is about to change; None where it need not, or that cannot be told."""
        if self._moving.get(optimizer) or not any(group.get("lr", 1) for group in optimizer.param_groups):
            return None
        looked: list[tuple[nn.Parameter, int | None, int]] = []
        gradients = False
        for parameter in (p for group in optimizer.param_groups for p in group["params"]):
            place = None
            if parameter.grad is not None:
                gradients = True
                gradient = local_part(parameter.grad)
                if gradient is None:
                    return None
                place = int(gradient.detach().abs().argmax()) if gradient.numel() else None
            if (crc := _digest(parameter, place)) is None:
                return None
            looked.append((parameter, place, crc))
        return Look(looked, gradients)

    def after(self, optimizer: Optimizer, look: Look) -> bool:
        """Whether the step has changed something; if so, the optimizer is not looked at any more."""
        changed = look.changed()
        if changed:
            self._moving.set(optimizer, True)
        return changed


def _digest(parameter: nn.Parameter, place: int | None) -> int | None:
    """The digest of a few elements; None where they cannot be read, or are no numbers and stay so."""
    local = local_part(parameter)
    if local is None:
        return None
    flat = local.detach().reshape(-1)
    values = [flat[:_SAMPLE]] if place is None or place >= flat.numel() else [flat[:_SAMPLE], flat[place : place + 1]]
    found = torch.cat(values).float().cpu()
    return None if bool(found.isnan().any()) else zlib.crc32(repr(found.tolist()).encode())
