"""The state of random number generators."""

from __future__ import annotations

from ...events import RandomStateTaken
from ..values import External, Obj, RngState, Value, What
from ..walk import division
from ..walk.calls import Call
from .table import anything, api

_GENERATOR = External("torch.Generator")


@api(
    "torch.get_rng_state", "torch.random.get_rng_state", "torch.cuda.get_rng_state", "torch.cuda.get_rng_state_all",
    "torch.cuda.random.get_rng_state", "random.getstate", "numpy.random.get_state", "torch.accelerator.get_rng_state",
    "torch.cuda.random.get_rng_state_all",
)  # fmt: skip
def _rng(call: Call) -> Value:
    call.walk.emit(RandomStateTaken, call.node)
    return RngState()


@anything("get_state", "getstate")
def _generator(call: Call, receiver: Value) -> Value | None:
    """The state of a generator of the program's own, or of what sounds like one."""
    if isinstance(receiver, Obj) and call.walk.what(receiver) is What.OPAQUE:
        call.walk.emit(RandomStateTaken, call.node)
        if receiver.cls == _GENERATOR:
            return RngState(made=True)
    return None


@anything("manual_seed")
def _seeded(call: Call, receiver: Value) -> Value | None:
    """`torch.Generator().manual_seed(seed)` is that generator."""
    if isinstance(receiver, Obj) and receiver.cls == _GENERATOR:
        division.called(call, "manual_seed")
        return receiver
    return None
