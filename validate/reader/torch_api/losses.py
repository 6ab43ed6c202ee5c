"""Losses that are means over a batch, or over what is left of it, and what is scaled afterwards."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterable

from ..nodes import last_name, nodes
from ..values import NONE, Const, External, Obj, Value, members, single
from ..walk import masked
from ..walk.calls import Call, call_library
from ..walk.core import Walk
from .table import anything, api

_FUNCTIONS = (
    "cross_entropy", "nll_loss", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
)  # fmt: skip
_IGNORING = ("cross_entropy", "nll_loss", "CrossEntropyLoss", "NLLLoss")
_IGNORED = -100  # the target that these leave out where the program does not say which
# What puts a number into the place of others.
_FILLING = {
    "masked_fill", "masked_fill_", "fill_", "index_fill", "index_fill_", "full", "full_like", "new_full", "where",
    "pad", "pad_sequence", "DataCollatorForSeq2Seq",
}  # fmt: skip
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
        if ignores(call):
            masked.establish(call.walk, made)
    elif isinstance(made, Obj) and call.constant(None, "reduction") == "sum":
        call.walk.establish(made, "sum")
    return made


def is_mean(call: Call) -> bool:
    """Whether a loss is built, or called, to be the mean."""
    given = (call.kwargs.get(name, NONE) for name in ("reduction", "size_average", "reduce"))
    return not call.open and all(value in (NONE, Const("mean")) for value in given)


def ignores(call: Call) -> bool:
    """Whether a loss that is built or called leaves out some of its targets, as far as the program shows.

    That it may is no sign of it: `ignore_index` is -100 unless another one is passed. The targets have it where the
    program puts it into tensors or lists somewhere, and where it is the number of a token or class.
    """
    if call.name.rpartition(".")[2] not in _IGNORING:
        return False
    value = call.get(None, "ignore_index")
    number = single(value) if value is not None else _IGNORED
    if isinstance(number, int):
        return number >= 0 or _is_filled_in(call.walk.files(), number)
    written = [ast.unparse(k.value) for k in getattr(call.node, "keywords", ()) if k.arg == "ignore_index"]
    return any("pad" in text.lower() for text in written)


def _is_filled_in(files: Iterable[ast.Module], number: int) -> bool:
    names = {name for file in files for name in _names_of(file, number)}
    return any(_fills_in(file, number, frozenset(names)) for file in files)


@functools.lru_cache(maxsize=512)
def _names_of(file: ast.Module, number: int) -> frozenset[str]:
    """What a file calls a number."""
    return frozenset(
        last_name(target)
        for node in nodes(file)
        if isinstance(node, ast.Assign) and _is_number(node.value, number)
        for target in node.targets
    ) - {""}


@functools.lru_cache(maxsize=512)
def _fills_in(file: ast.Module, number: int, names: frozenset[str]) -> bool:
    """Whether a file puts a number, or what goes by these names, into tensors or lists."""

    def is_it(node: ast.AST) -> bool:
        return _is_number(node, number) or last_name(node) in names

    for node in nodes(file):
        match node:
            case ast.Assign(targets=[ast.Subscript(slice=places)], value=value) if is_it(value):
                if not _is_fixed(places):
                    return True
            case ast.ListComp(elt=value) if is_it(value):
                return True
            case ast.IfExp(body=one, orelse=other) if is_it(one) or is_it(other):
                return True
            case ast.BinOp(left=ast.List(elts=[value]), op=ast.Mult()) if is_it(value):
                return True
            case ast.Call(func=func, args=[_, amounts, *_]) if last_name(func) == "pad" and _is_fixed(amounts):
                continue
            case ast.Call(func=func, args=args, keywords=keywords) if last_name(func) in _FILLING:
                if any(map(is_it, (*args, *(k.value for k in keywords)))):
                    return True
    return False


def _is_fixed(node: ast.AST) -> bool:
    """Whether places or amounts are the same wherever this is done: `[:, -1]`, `(0, 1)`."""
    kinds = (ast.Constant, ast.Slice, ast.Tuple, ast.List, ast.UnaryOp)
    return all(isinstance(part, kinds) for part in nodes(node))


def _is_number(node: ast.AST, number: int) -> bool:
    negative = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub)
    constant = node.operand if isinstance(node, ast.UnaryOp) and negative else node
    return isinstance(constant, ast.Constant) and constant.value == abs(number) and negative is (number < 0)


@anything("scale")
def _scale(call: Call, receiver: Value) -> Value | None:
    """`scaler.scale(loss)`: the scaler takes out of the gradients what it puts in."""
    is_scaler = isinstance(receiver, Obj) and receiver.cls == External("torch.amp.GradScaler")
    return call.args[0] if is_scaler and call.args else None


def counts_alone(walk: Walk, loss: Value) -> bool | None:
    """Whether a backward starts from a mean over what a mask leaves on this rank; None where that is not known."""
    return True if masked.is_masked(walk, loss) and not any(map(_scales_gradients, walk.files())) else None


def averaged(walk: Walk, loss: Value) -> bool | None:
    """Whether a backward starts from a mean that nothing scales, and neither its gradients; None where not known."""
    means = [isinstance(v, Obj) and walk.fact(v, "mean") and not walk.fact(v, "scaled") for _, v in members(loss)]
    return True if all(means) and not any(map(_scales_gradients, walk.files())) else None


@functools.lru_cache(maxsize=512)
def _scales_gradients(tree: ast.Module) -> bool:
    """Whether a file may scale gradients by hand."""
    for node in nodes(tree):
        if isinstance(node, ast.Attribute) and (node.attr in _SCALING or _is_of_gradient(node)):
            return True
        targets = [node.target] if isinstance(node, ast.AugAssign) else getattr(node, "targets", [])
        if any(isinstance(target, ast.Attribute) and target.attr == "grad" for target in targets):
            return True
    return False


def _is_of_gradient(node: ast.Attribute) -> bool:
    return node.attr in ("mul_", "div_") and "grad" in ast.unparse(node.value)
