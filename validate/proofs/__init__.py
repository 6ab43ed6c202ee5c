"""What can be proved of a script by running it."""

from __future__ import annotations

from .asynchronous import Asynchronous
from .base import Proof
from .crash import Crash
from .export import Export
from .parity import Parity
from .reshard import Reshard
from .resume import Resume
from .trace import RulesHold

PROOFS: tuple[Proof, ...] = (
    RulesHold(),
    Parity(),
    Resume(),
    Reshard(),
    Crash(),
    Asynchronous(),
    Export(),
)
