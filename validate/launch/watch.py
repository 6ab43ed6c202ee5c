"""Watches a job until it has ended or its deadline has passed, and collects what its ranks left."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Protocol

from ..errors import UserError
from .job import Job, RankEnd, Run
from .places import Places, write_whole

POLL = 0.02  # seconds
START_LIMIT = 180.0  # seconds for the ranks to import torch and reach the script, on a busy machine
STACK_LIMIT = 3.0  # seconds for a rank to write its stacks
SURVIVAL = 1.0  # seconds that the others live on after the probe has killed one rank; torchrun grants them 30
OUTPUT_LIMIT = 64 * 1024  # bytes kept of what a rank printed
# As faulthandler writes it, which escapes what is not ASCII.
OWN_CODE = str(Path(__file__).resolve().parents[1]).encode("ascii", "backslashreplace").decode("ascii")
RANK_CODE = str(Path(__file__).resolve().with_name("rank.py"))


class Leader(Protocol):
    """The first process of a job (`leader.py`), as the launcher that started it sees it."""

    pid: int

    def over(self, wait: float) -> bool:
        """Whether it has ended and was reaped, after waiting at most `wait` seconds for that."""
        ...


class Abandoned(Exception):
    """The run is not wanted any more; it was ended."""


def watch(job: Job, places: Places, leader: Leader, abandoned: threading.Event | None = None) -> Run:
    """Wait for the end of a job, or end it at its deadline; no process of it is left, whatever happens here.

    The deadline counts from when the first rank begins its script. Raises UserError when no rank gets that far, and
    Abandoned once that is set.
    """
    ranks = range(job.nproc)
    started = time.monotonic()
    begun: float | None = None
    codes: dict[int, int] | None = None
    over = False
    alone = job.probe.fault is not None and job.probe.fault.harm == "kill one"
    killed: float | None = None
    try:
        while not (over := leader.over(POLL)):
            if abandoned is not None and abandoned.is_set():
                raise Abandoned
            now = time.monotonic()
            if begun is None and any(places.begun(rank).exists() for rank in ranks):
                begun = now
            if begun is not None and now - begun > job.deadline:
                codes = _codes(places, ranks)
                write_whole(places.hung, repr(now))
                _ask_for_stacks(places, [rank for rank in ranks if rank not in codes])
                break
            if begun is None and now - started > START_LIMIT:
                break
            if alone and killed is None and places.struck.exists():
                killed = now
            if killed is not None and now - killed > SURVIVAL:
                break
    finally:
        if not over:
            mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # a second Ctrl-C must not cut this short
            with contextlib.suppress(ProcessLookupError):  # it may have ended by itself just now
                os.kill(leader.pid, signal.SIGTERM)
            while not leader.over(POLL):
                pass
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    seconds = time.monotonic() - started
    if not any(places.begun(rank).exists() for rank in ranks):
        raise UserError(f"the ranks did not start: {_last_line(places)}; expected torch to work in this environment")
    ended = codes if codes is not None else {**dict.fromkeys(ranks, -signal.SIGKILL), **_codes(places, ranks)}
    ends = tuple(_end(places, rank, ended.get(rank)) for rank in ranks)
    return Run(job=job, ends=ends, records=places.records_folder, seconds=seconds)


def _codes(places: Places, ranks: range) -> dict[int, int]:
    return {rank: int(places.ended(rank).read_text()) for rank in ranks if places.ended(rank).exists()}


def _ask_for_stacks(places: Places, ranks: list[int]) -> None:
    from .rank import STACK_SIGNAL

    for rank in ranks:
        if places.begun(rank).exists():
            try:
                os.kill(int(places.begun(rank).read_text()), STACK_SIGNAL)
            except ProcessLookupError:
                continue
    sizes: dict[int, int] = {}
    until = time.monotonic() + STACK_LIMIT
    while time.monotonic() < until:
        time.sleep(0.1)
        now = {rank: places.stack(rank).stat().st_size for rank in ranks if places.stack(rank).exists()}
        if now == sizes and all(now.get(rank) for rank in ranks):
            return
        sizes = now


def _end(places: Places, rank: int, code: int | None) -> RankEnd:
    stack = _stack(places.stack(rank)) if code is None else None
    return RankEnd(
        rank=rank, code=code, error=_error(places.records(rank)), stack=stack, output=_tail(places.log(rank))
    )


def _stack(path: Path) -> str | None:
    """What faulthandler wrote, as if the script were the whole program: no frames of ours, none below its own."""
    if not path.exists() or not (text := path.read_text(errors="replace")):
        return None
    lines, below = list[str](), False
    for line in text.splitlines():
        if not line.startswith("  File"):
            below = False  # another thread
        elif f'File "{OWN_CODE}{os.sep}' in line:
            below = below or f'File "{RANK_CODE}"' in line
            continue
        if not below:
            lines.append(line)
    return "\n".join(lines).strip() + "\n"


def _error(records: Path) -> str | None:
    if not records.exists():
        return None
    for line in reversed(records.read_bytes().splitlines()):
        if b'"Exited"' in line:
            error = json.loads(line).get("error")
            return None if error is None else str(error)
    return None


def _tail(log: Path) -> str:
    if not log.exists():
        return ""
    with log.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - OUTPUT_LIMIT))
        text = file.read().decode(errors="replace")
    return text if size <= OUTPUT_LIMIT else f"[{size - OUTPUT_LIMIT} bytes left out]\n{text}"


def _last_line(places: Places) -> str:
    logs = [places.agent_log, *sorted(places.agent_log.parent.glob("ranks/*.log"))]
    lines = [line.strip() for log in logs if log.exists() for line in log.read_text(errors="replace").splitlines()]
    telling = [line for line in lines if "Error" in line] or [line for line in lines if any(map(str.isalpha, line))]
    return telling[-1] if telling else "they wrote nothing"
