"""Gives the proofs of one script, two at a time where their runs are sure not to meet.

A run of two ranks leaves part of two cores idle: while one rank waits for the other, or for a disk.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

from ..errors import UserError
from .base import DoesNotApply, Proof, Verdict
from .bench import Bench

LANES = 2
INTERRUPTS = {signal.SIGINT, signal.SIGTERM}

Timed = tuple[Verdict, float]  # and the seconds that it took


def give(proofs: Sequence[Proof], bench: Bench) -> list[Timed]:
    """What came of each proof, in order. The first one has run what the others look at too."""
    began = time.monotonic()
    bench.progress.runs_for(proofs[0].name)
    try:
        beside = len(proofs) > 1 and bench.side_by_side
    except UserError:  # which each of them tells of
        beside = False
    spent = time.monotonic() - began
    (first, seconds), *others = _two_at_a_time(proofs, bench) if beside else [_give(proof, bench) for proof in proofs]
    return [(first, round(seconds + spent, 3)), *others]


def _give(proof: Proof, bench: Bench) -> Timed:
    began = time.monotonic()
    bench.progress.runs_for(proof.name)
    try:
        verdict = proof.prove(bench)
    except UserError as error:
        applies = not isinstance(error, DoesNotApply)
        verdict = Verdict(name=proof.name, status="skip", reason=str(error), applies=applies)
    return verdict, round(time.monotonic() - began, 3)


def _two_at_a_time(proofs: Sequence[Proof], bench: Bench) -> list[Timed]:
    with _lanes(bench) as lanes:
        given: dict[str, Future[Timed]] = {}
        for proof in sorted(proofs, key=lambda proof: not proof.chained):
            given[proof.name] = lanes.submit(_give, proof, bench)
        return [given[proof.name].result() for proof in proofs]


@contextmanager
def _lanes(bench: Bench) -> Iterator[ThreadPoolExecutor]:
    """Threads that have ended, with all that they ran, when this is left, whatever happens meanwhile."""
    lanes = ThreadPoolExecutor(LANES, initializer=signal.pthread_sigmask, initargs=(signal.SIG_BLOCK, INTERRUPTS))
    try:
        yield lanes
    except BaseException:
        bench.launcher.abandon()
        raise
    finally:
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, INTERRUPTS)  # a second Ctrl-C must not cut this short
        lanes.shutdown(cancel_futures=True)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
