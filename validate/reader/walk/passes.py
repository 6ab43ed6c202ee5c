"""Passes through the batches of a loader: which are underway, and where a program may pass over batches."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ...events import BatchesDrawn, BatchesPassedOver
from .core import Walk
from .counting import draws_and_skips, may_pass_over

if TYPE_CHECKING:
    from .calls import Call

# How programs call what brings data to where training was stopped.
_MOVES_ON = re.compile(
    r"skip|fast_?forward|seek|advance|resum|restor|set_(step|start|position|offset|consumed|state|iter)", re.IGNORECASE
)


@contextmanager
def going_through(walk: Walk, node: ast.For | ast.AsyncFor, since: int) -> Iterator[None]:
    """The body of a loop over what was drawn by the events from `since` on."""
    loaders = [event.loader for event in walk.events(BatchesDrawn, since)]
    if loaders and may_pass_over(node):
        for loader in loaders:
            walk.emit(BatchesPassedOver, node, loader=loader)
    skipping(walk, node)
    before = list(walk.underway)
    walk.underway += loaders
    yield
    if not walk.frame.yields:  # a generator is left in the middle of its loop
        walk.underway = before


def skipping(walk: Walk, node: ast.For | ast.AsyncFor | ast.While) -> None:
    """Tell of a loop that draws batches itself, and leaves some of them out."""
    if draws_and_skips(node):
        walk.emit(BatchesPassedOver, node)


def begun(walk: Walk, since: int) -> None:
    """What was drawn by the events from `since` on is gone through batch by batch from here on."""
    walk.underway += [event.loader for event in walk.events(BatchesDrawn, since)]


def called(call: Call, name: str) -> None:
    """Something without source is called, which may move a loader, a sampler or a dataset on."""
    if _moves_on(name):
        call.walk.emit(BatchesPassedOver, call.node)


@functools.lru_cache(maxsize=4096)
def _moves_on(name: str) -> bool:
    return _MOVES_ON.search(name.rpartition(".")[2]) is not None


def thrown_away(walk: Walk, node: ast.AST) -> bool:
    """Whether nobody keeps what is drawn by a call."""
    statement = walk.here[1]
    if isinstance(statement, ast.Assign) and statement.value is node:
        return all(isinstance(t, ast.Name) and t.id.startswith("_") for t in statement.targets)
    return isinstance(statement, ast.Expr) and statement.value is node
