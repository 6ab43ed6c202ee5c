"""What can be proved of a script by running it."""

from __future__ import annotations

from .base import Proof
from .crash import Crash
from .resume import Resume
from .trace import RulesHold

PROOFS: tuple[Proof, ...] = (RulesHold(), Resume(), Crash())
