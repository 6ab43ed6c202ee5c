"""Reads back what was written, as anyone will read it, and compares it with what was read, by digest."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ..checkpoint.pickles import shown
from ..errors import UserError
from .entries import Elements, Entry, open_source
from .output import Writing
from .pickling import pickled
from .progress import Progress

WORKERS = min(4, os.cpu_count() or 1)  # hashing is what takes time, and does not hold up other threads


class Mismatch(Exception):
    """What was written is not what was read, in the way that the text says."""


def verify(writing: Writing, beside: Path, entries: Sequence[Entry], progress: Progress) -> None:
    """Raise Mismatch unless the file or folder holds these entries. Meanwhile, it is brought to the disk."""
    share = min(WORKERS, len(entries))
    with ThreadPoolExecutor(share + 1) as pool:
        synced = pool.submit(writing.sync)
        try:
            compared = [pool.submit(_compare, writing, beside, entries, progress, i, share) for i in range(share)]
            for one in compared:
                one.result()
        except UserError as error:
            raise Mismatch(str(error)) from None
        finally:
            progress.end()
        synced.result()


def _compare(
    writing: Writing, beside: Path, entries: Sequence[Entry], progress: Progress, first: int, every: int
) -> None:
    """Compare every so many entries, from the first; each worker has its own files open."""
    written = open_source(str(beside))
    if set(written.paths) != {entry.key for entry in entries}:
        raise Mismatch("it holds other keys")
    for entry in entries[first::every]:
        found = written.entry(entry.key)
        pickle, tensors = pickled(entry.value)
        other, others = pickled(found.value)
        if pickle != other or len(tensors) != len(others):
            raise Mismatch(f"{shown(entry.key)} has another value, dtype or shape")
        for tensor, again in zip(tensors, others, strict=True):
            if _digest(again, progress) != writing.digests[tensor.origin]:
                raise Mismatch(f"{shown(entry.key)} has other elements")


def _digest(tensor: Elements, progress: Progress) -> str:
    sha = tensor.hash()
    for block in tensor.blocks():
        sha.update(block)
        progress.add(len(block))
    return str(sha.hexdigest())
