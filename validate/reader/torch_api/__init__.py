"""What library code does, as far as the contract is concerned. `table` says how to add an API."""

from . import asynchronous, checkpoint, folders, launch, modules, optimizers, python, sharding, state_dicts

__all__ = [
    "asynchronous",
    "checkpoint",
    "folders",
    "launch",
    "modules",
    "optimizers",
    "python",
    "sharding",
    "state_dicts",
]
