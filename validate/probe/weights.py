"""How much one element weighs in the loss of a rank, where that is a mean over some of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

_LOOKS = 8  # backwards of a rank that are looked at: to read a count waits for the device
_DEPTH = 12  # operations between the loss and the mean: divisions, multiplications, changes of dtype and shape
_TOLERANCE = 1e-3  # counts are whole numbers, and factors may be rounded to the dtype of the loss
_MEAN, _SUM = 1, 2  # what torch calls these reductions in the nodes of its graph
_PASSED = {
    "AliasBackward0", "CloneBackward0", "SqueezeBackward0", "ToCopyBackward0", "UnsqueezeBackward0", "ViewBackward0",
}  # fmt: skip


@dataclass(frozen=True)
class Weight:
    """What the loss of each element is multiplied by; `chosen`: some elements are left out, or may be."""

    of_each: float
    chosen: bool


def differ(weights: Sequence[Weight]) -> bool:
    """Whether elements weigh more on some ranks than on others, because more are left out there."""
    each = [weight.of_each for weight in weights]
    return any(weight.chosen for weight in weights) and max(each) - min(each) > _TOLERANCE * max(map(abs, each))


class Weights:
    """Of the elements in the first losses of this rank."""

    def __init__(self) -> None:
        self._left = _LOOKS

    def of(self, losses: Any) -> Weight | None:
        """The weight of the elements in a loss, None where that cannot be told."""
        node = getattr(losses, "grad_fn", None)
        if node is None or not self._left:
            return None
        self._left -= 1
        try:
            weight = _from(node)
        except RuntimeError:  # what the graph keeps was changed in place, or is gone
            return None
        return weight if weight is not None and math.isfinite(weight.of_each) else None


def _from(node: Any) -> Weight | None:
    """Goes from the loss down to a mean, or to a sum that was divided."""
    factor, divided = 1.0, False
    for _ in range(_DEPTH):
        name = type(node).__name__
        if name in ("DivBackward0", "MulBackward0"):
            node, number = _scaled(node)
            if not number:
                return None
            divides = name == "DivBackward0"
            divided = divided or divides
            factor = factor / number if divides else factor * number
        elif name in _PASSED:
            node = node.next_functions[0][0]
        elif name == "SumBackward0":
            return Weight(factor, chosen=True) if divided else None
        elif name in ("NllLossBackward0", "NllLoss2DBackward0"):
            return _of_targets(node, factor, divided)
        elif name == "MeanBackward0" and type(node.next_functions[0][0]).__name__ in _CHOICES:
            return Weight(factor / node._saved_self_sym_numel, chosen=True)
        else:
            return None
    return None


_CHOICES = {"IndexBackward0", "MaskedSelectBackward0"}


def _scaled(node: Any) -> tuple[Any, float | None]:
    """What of a multiplication or division is differentiated, and the number that scales it; None for a tensor."""
    left, right = (function for function, _ in node.next_functions)
    if (left is None) is (right is None) or (left is None and type(node).__name__ == "DivBackward0"):
        return None, None
    inner, other = (left, node._saved_other) if right is None else (right, node._saved_self)
    return inner, float(other) if other is not None and other.numel() == 1 else None


def _of_targets(node: Any, factor: float, divided: bool) -> Weight | None:
    """Of a loss over targets, some of which it may ignore."""
    if node._saved_weight is not None:
        return None
    if node._saved_reduction == _SUM:
        return Weight(factor, chosen=True) if divided else None
    taken = float(node._saved_total_weight)
    if node._saved_reduction != _MEAN or not taken:
        return None
    return Weight(factor / taken, chosen=taken < node._saved_target.numel())
