"""Losses that are means over a batch, and what is scaled afterwards."""

from __future__ import annotations

import ast
import functools

from ..nodes import nodes
from ..values import NONE, Const, External, Obj, Value, members
from ..walk.calls import Call, call_library
from ..walk.core import Walk
from ..walk.folders import trees
from .table import anything, api

_FUNCTIONS = (
    "cross_entropy", "nll_loss", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
)  # fmt: skip
# What a program may scale gradients with, apart from the loss.
_SCALING = {
    "set_gradient_divide_factor", "set_reduce_scatter_divide_factor", "_foreach_div_", "_foreach_mul_",
    "register_hook", "register_post_accumulate_grad_hook", "set_force_sum_reduction_for_comms",
}  # fmt: skip


@api(*(f"torch.nn.functional.{name}" for name in _FUNCTIONS))
def _loss(call: Call) -> Value:
    made = call_library(call, call.name)
    if isinstance(made, Obj) and is_mean(call):
        call.walk.establish(made, "mean")
    return made


def is_mean(call: Call) -> bool:
    """Whether a loss is built, or called, to be the mean."""
    given = (call.kwargs.get(name, NONE) for name in ("reduction", "size_average", "reduce"))
    return not call.open and all(value in (NONE, Const("mean")) for value in given)


@anything("scale")
def _scale(call: Call, receiver: Value) -> Value | None:
    """`scaler.scale(loss)`: the scaler takes out of the gradients what it puts in."""
    is_scaler = isinstance(receiver, Obj) and receiver.cls == External("torch.amp.GradScaler")
    return call.args[0] if is_scaler and call.args else None


def averaged(walk: Walk, loss: Value) -> bool | None:
    """Whether a backward starts from a mean that nothing scales, and neither its gradients; None where not known."""
    means = [isinstance(v, Obj) and walk.fact(v, "mean") and not walk.fact(v, "scaled") for _, v in members(loss)]
    return True if all(means) and not any(map(_scales_gradients, trees(walk))) else None


@functools.lru_cache(maxsize=512)
def _scales_gradients(tree: ast.Module) -> bool:
    """Whether a file may scale gradients by hand."""
    for node in nodes(tree):
        if isinstance(node, ast.Attribute) and (node.attr in _SCALING or _is_of_gradient(node)):
            return True
        if isinstance(node, ast.AugAssign) and ast.unparse(node.target).endswith(".grad"):
            return True
    return False


def _is_of_gradient(node: ast.Attribute) -> bool:
    return node.attr in ("mul_", "div_") and "grad" in ast.unparse(node.value)
