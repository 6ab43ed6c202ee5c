"""What library code does, as far as the contract is concerned. `table` says how to add an API."""

from . import (
    asynchronous,
    checkpoint,
    data,
    folders,
    launch,
    members,
    modules,
    optimizers,
    places,
    python,
    questions,
    randomness,
    recomputation,
    reductions,
    sharding,
    state_dicts,
)

__all__ = [
    "asynchronous",
    "checkpoint",
    "data",
    "folders",
    "launch",
    "members",
    "modules",
    "optimizers",
    "places",
    "python",
    "questions",
    "randomness",
    "recomputation",
    "reductions",
    "sharding",
    "state_dicts",
]
