"""A model as a plan sees it: its parameters with shape and FSDP unit, its buffers, and, where known, its layers."""

from __future__ import annotations

import math
from dataclasses import dataclass

from .mesh import Mesh, local_part
from .transformer import Transformer

FP32, BF16 = 4, 2  # bytes of an element
STATES = {"adamw": ("exp_avg", "exp_avg_sq"), "sgd": ("momentum_buffer",)}
"""Of each optimizer, the tensors that it keeps of a parameter, each of the parameter's shape and placement."""


@dataclass(frozen=True)
class Parameter:
    """A parameter, in fp32.

    * `names`: its FQNs; more than one where it is tied.
    * `unit`: the FQN of the module by which FSDP gathers it, empty for the root.
    * `split`: the dim along which tensor parallelism splits it, if it does.
    """

    names: tuple[str, ...]
    shape: tuple[int, ...]
    unit: str
    split: int | None = None
    trained: bool = True

    @property
    def numel(self) -> int:
        """The number of elements of the whole."""
        return math.prod(self.shape)

    def local_numel(self, mesh: Mesh, rank: int) -> int:
        """The number of elements that a rank holds."""
        return math.prod(local_part(self.shape, self.split, mesh, rank)[1])


@dataclass(frozen=True)
class Buffer:
    """A buffer, which every rank holds whole."""

    name: str
    bytes: int
    persistent: bool


@dataclass(frozen=True)
class Model:
    """What is trained. `transformer` is there where the formula of activations applies."""

    name: str
    parameters: tuple[Parameter, ...]
    buffers: tuple[Buffer, ...] = ()
    transformer: Transformer | None = None

    @property
    def numel(self) -> int:
        """The number of elements of all parameters."""
        return sum(parameter.numel for parameter in self.parameters)

    @property
    def units(self) -> dict[str, tuple[Parameter, ...]]:
        """The parameters by FSDP unit."""
        units: dict[str, list[Parameter]] = {}
        for parameter in self.parameters:
            units.setdefault(parameter.unit, []).append(parameter)
        return {unit: tuple(parameters) for unit, parameters in units.items()}
