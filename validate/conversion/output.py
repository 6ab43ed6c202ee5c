"""The disk: files that come to be under their names once all of them is there and was read back, or never."""

from __future__ import annotations

import contextlib
import os
import shutil
import zlib
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

from ..checkpoint.show import size
from ..errors import UserError
from .entries import Elements
from .progress import Progress

_SYNCED = 2**26  # bytes after which the disk is told to begin, so that it does not wait for the last of them
_SMALL = 2**17  # bytes; handing fewer to another thread takes longer than hashing them here


@contextlib.contextmanager
def published(target: Path) -> Iterator[Path]:
    """A path beside the target for a file or a folder, which gets the target's name when the block ends well."""
    if os.path.lexists(target):
        raise UserError(f"{target}: exists, and is never overwritten; name another, or remove it first")
    if not target.parent.is_dir():
        raise UserError(f"{target}: there is no folder {target.parent}")
    beside = target.with_name(f"{target.stem}.part-{os.getpid()}{target.suffix}")
    try:
        yield beside
        _sync(target.parent if beside.is_file() else beside)
        if os.path.lexists(target):
            raise UserError(f"{target}: has come to exist meanwhile, and was not overwritten")
        beside.rename(target)
        _sync(target.parent)
    except OSError as error:
        raise UserError(f"{target}: {error.strerror}; nothing was left there") from None
    finally:
        if beside.is_dir():
            shutil.rmtree(beside, ignore_errors=True)
        beside.unlink(missing_ok=True)


def _sync(folder: Path) -> None:
    """Bring the names in a folder to the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def check_space(folder: Path, wanted: int) -> None:
    """Raise UserError where so many bytes will not fit."""
    free = shutil.disk_usage(folder).free
    if free < wanted:
        raise UserError(f"{folder}: {size(free)} are free, {size(wanted)} are needed; nothing was written")


class Writing:
    """What the outputs of one conversion share: threads that hash and sync, digests by tensor, and the progress."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self.hasher, self.syncer = ThreadPoolExecutor(1), ThreadPoolExecutor(1)
        self.digests: dict[tuple[Any, ...], str] = {}  # by the origin of Elements
        self.files: list[Path] = []

    @contextlib.contextmanager
    def file(self, path: Path) -> Iterator[Output]:
        """A new file."""
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        out = Output(descriptor, self)
        try:
            yield out
            out.finish()
        finally:
            wait(out.syncing)
            os.close(descriptor)
        self.files.append(path)

    def sync(self) -> None:
        """Bring all that was written to the disk."""
        for path in self.files:
            _sync(path)


class Output:
    """A file that is written from its beginning to its end."""

    def __init__(self, descriptor: int, writing: Writing) -> None:
        self._descriptor, self._writing = descriptor, writing
        self.written, self._synced = 0, 0
        self.syncing: list[Future[None]] = []  # one at most

    def write(self, data: bytes | memoryview) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._descriptor, view) :]
        self.written += len(data)
        if self.written - self._synced >= _SYNCED and all(future.done() for future in self.syncing):
            self.finish()
            self.syncing = [self._writing.syncer.submit(os.fdatasync, self._descriptor)]
            self._synced = self.written

    def finish(self) -> None:
        """Wait until the disk has what it was told to write. Raises OSError where it has not."""
        for future in self.syncing:
            future.result()

    def stream(self, tensor: Elements, *, checksum: bool = False) -> int:
        """Write the elements; the CRC-32 of their bytes, if it is wanted. Their digest is kept."""
        sha, crc = tensor.hash(), 0
        hashing: deque[Future[None]] = deque()
        for block in tensor.blocks():
            if len(block) < _SMALL and not hashing:
                sha.update(block)
            else:
                hashing.append(self._writing.hasher.submit(sha.update, block))
            if checksum:
                crc = zlib.crc32(block, crc)
            self.write(block)
            self._writing.progress.add(len(block))
            if len(hashing) > 1:  # no more blocks in memory than that
                hashing.popleft().result()
        for future in hashing:
            future.result()
        self._writing.digests[tensor.origin] = sha.hexdigest()
        return crc
