"""What was reduced over the ranks in place and is then differentiated, and what is read before it is reduced."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.tensor import DTensor

from ..events import PartialRead, Ref
from .observer import Call, Handler, Observer

_KEPT = 8  # reduced tensors that are remembered until the next backward, each with its graph
_DEPTH = 4  # operations between a reduced tensor and the loss: a division, a multiplication


class Reductions:
    """Tensors with a graph that the program has reduced since the last backward."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._done: list[tuple[object, Ref]] = []  # the node of the graph that the tensor comes from

    def new(self, tensor: object) -> tuple[Ref, ...]:
        """The identity of a tensor that is about to be reduced; nothing for one that nobody can differentiate."""
        if isinstance(tensor, torch.Tensor) and tensor.grad_fn is not None:
            return (self._observer.identities.new("loss"),)
        return ()

    def done(self, tensor: Any, of: tuple[Ref, ...]) -> None:
        """The tensor has been reduced."""
        for ref in of:
            self._done = [*self._done, (tensor.grad_fn, ref)][-_KEPT:]

    def before(self, losses: object) -> tuple[Ref, ...]:
        """What was reduced of what a backward starts from; it is forgotten then."""
        reduced, self._done = self._done, []
        if not reduced:
            return ()
        given = losses if isinstance(losses, (list, tuple)) else (losses,)
        nodes: list[Any] = [t.grad_fn for t in given if isinstance(t, torch.Tensor)]
        seen: list[Any] = []
        for _ in range(_DEPTH):
            seen += nodes
            nodes = [inner for node in nodes if node is not None for inner, _ in node.next_functions]
        return tuple(ref for node, ref in reduced if any(node is other for other in seen))


def install(observer: Observer) -> None:
    """Hook what this module is about."""

    def read(call: Call) -> Handler:
        tensor = call.args[0]
        if any(placement.is_partial() for placement in tensor.placements):
            observer.emit(PartialRead, call.frame, value=observer.ref(tensor, call.frame, "the number"))
        yield

    for name in ("item", "tolist", "__float__"):
        observer.wrap([DTensor], name, read, inherited=True)
