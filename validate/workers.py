"""Sharing out work among processes: forked from this one, so that they start with all that it has imported and read."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

_TICKET = 4  # bytes
_TICKETS = 8_192  # at most, so that they all fit into a pipe at once


def map_forked(function: Callable[[T], R], items: Sequence[T], failed: Callable[[T], R]) -> list[R]:
    """`[function(item) for item in items]`, done by a process for each core where processes can be forked.

    Items are taken one by one, from the first on: put those first that take longest. `failed` gives the result for an
    item whose process died under it.
    """
    helpers = _cores() - 1 if sys.platform == "linux" else 0  # elsewhere, forking is missing or unsafe
    share = -(-len(items) // _TICKETS)
    tickets, out = os.pipe()
    os.write(out, b"".join(start.to_bytes(_TICKET, "little") for start in range(0, len(items), max(1, share))))
    os.close(out)

    def work() -> dict[int, R]:
        done: dict[int, R] = {}
        while ticket := os.read(tickets, _TICKET):  # the processes read from one pipe: none gets another's ticket
            start = int.from_bytes(ticket, "little")
            done.update((i, function(items[i])) for i in range(start, min(start + share, len(items))))
        return done

    sys.stdout.flush()
    sys.stderr.flush()
    gc.freeze()  # a collection in a helper would otherwise touch, and so copy, all memory that it shares
    pipes = [_fork(work) for _ in range(min(helpers, len(items) - 1))]
    try:
        done = work()
    finally:
        os.close(tickets)
        answers = [_answer(*pipe) for pipe in pipes]
    import pickle  # only where there are processes to talk to: it takes a while to import

    for answer in answers:
        done.update(pickle.loads(answer) if answer else {})  # noqa: S301 - written by our own child
    return [done[i] if i in done else failed(item) for i, item in enumerate(items)]


def _fork(work: Callable[[], object]) -> tuple[int, int]:
    """Start a process that does `work` and writes what it returns; its id and the end of the pipe to read from."""
    here, there = os.pipe()
    child = os.fork()
    if child:
        os.close(there)
        return child, here
    try:
        os.close(here)
        import pickle

        with os.fdopen(there, "wb") as answer:
            pickle.dump(work(), answer, pickle.HIGHEST_PROTOCOL)
    finally:
        os._exit(0)  # the parent's handlers and buffers are the parent's


def _answer(child: int, pipe: int) -> bytes:
    with os.fdopen(pipe, "rb") as answer:
        content = answer.read()
    return content if os.waitpid(child, 0)[1] == 0 else b""


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
