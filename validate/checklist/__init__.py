"""SKILL.md's two workflows as lists that the linter ticks off: retrofit FSDP2 (`a`), add DCP (`b`)."""

from __future__ import annotations

from .items import WORKFLOWS, Item
from .seen import Seen
from .verdicts import Status, Verdict, Workflow, applies, ticked

__all__ = ["WORKFLOWS", "Item", "Seen", "Status", "Verdict", "Workflow", "applies", "ticked"]
