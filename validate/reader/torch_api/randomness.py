"""The state of random number generators."""

from __future__ import annotations

from ...events import RandomStateTaken
from ..values import Obj, RngState, Value, What
from ..walk.calls import Call
from .table import anything, api


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
    return None
