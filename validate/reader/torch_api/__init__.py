"""What library code does, as far as the contract is concerned. `table` says how to add an API."""

from . import asynchronous, checkpoint, launch, modules, optimizers, python, sharding, state_dicts

__all__ = ["asynchronous", "checkpoint", "launch", "modules", "optimizers", "python", "sharding", "state_dicts"]
