"""Writes what `torch.save` writes: a zip of a pickle and of the bytes that it names, each at a multiple of 64.

A record's length is known when it begins, its checksum when it ends; so that follows it, as torch has it too, and the
archive is written from its first byte to its last.
"""

from __future__ import annotations

import struct
import zlib
from typing import Any

from .output import Output
from .pickling import pickled

ALIGNMENT = 64  # bytes; torch maps records into memory
_FLAGS = 0x0808  # the checksum follows the data; names are UTF-8
_LARGE = 2**32 - 1  # from here on, numbers have eight bytes
_ELSEWHERE = 2**32 - 1  # in the place of such a number
_ROOT = "archive"


def write_archive(out: Output, value: Any) -> int:
    """Write the value as torch.save would; how many bytes that took. The elements of its tensors are read meanwhile."""
    archive = _Archive(out)
    pickle, tensors = pickled(value)
    archive.record("data.pkl", pickle)
    archive.record(".format_version", b"1")
    archive.record(".storage_alignment", str(ALIGNMENT).encode())
    archive.record("byteorder", b"little")
    for number, tensor in enumerate(tensors):
        archive.begin(f"data/{number}", tensor.bytes)
        archive.end(out.stream(tensor, checksum=True))
    archive.record("version", b"3\n")
    return archive.close()


class _Archive:
    """Places are counted from the archive's first byte, wherever in the output that is."""

    def __init__(self, out: Output) -> None:
        self._out, self._start = out, out.written
        self._entries: list[tuple[bytes, int, int, int]] = []  # name, checksum, length, place of the header
        self._begun = (b"", 0, 0)

    @property
    def _at(self) -> int:
        return self._out.written - self._start

    def record(self, name: str, data: bytes) -> None:
        self.begin(name, len(data))
        self._out.write(data)
        self.end(zlib.crc32(data))

    def begin(self, name: str, length: int) -> None:
        """Write the header of a record, and the padding before its data."""
        path = f"{_ROOT}/{name}".encode()
        large = struct.pack("<HHQQ", 1, 16, length, 0) if length >= _LARGE else b""
        ahead = self._at + 30 + len(path) + len(large) + 4
        padding = -ahead % ALIGNMENT
        extra = large + struct.pack("<2sH", b"FB", padding) + b"Z" * padding
        version = 45 if large else 20
        sizes = (_ELSEWHERE, _ELSEWHERE) if large else (0, 0)
        header = struct.pack("<4s5H3I2H", b"PK\3\4", version, _FLAGS, 0, 0, 0, 0, *sizes, len(path), len(extra))
        self._begun = (path, length, self._at)
        self._out.write(header + path + extra)

    def end(self, checksum: int) -> None:
        """Write what follows the data."""
        path, length, at = self._begun
        form = "<4sIQQ" if length >= _LARGE else "<4sIII"
        self._out.write(struct.pack(form, b"PK\7\x08", checksum, length, length))
        self._entries.append((path, checksum, length, at))

    def close(self) -> int:
        """Write the directory; how many bytes the archive has."""
        start = self._at
        for path, checksum, length, at in self._entries:
            large = [number for number in (length, length, at) if number >= _LARGE]
            extra = struct.pack(f"<HH{len(large)}Q", 1, 8 * len(large), *large) if large else b""
            fields = (45 if large else 20, 45 if large else 20, _FLAGS, 0, 0, 0, checksum)
            short = (_short(length), _short(length), len(path), len(extra), 0, 0, 0, 0, _short(at))
            self._out.write(struct.pack("<4s6H3I5H2I", b"PK\1\2", *fields, *short) + path + extra)
        end, count = self._at, len(self._entries)
        if count >= 2**16 - 1 or end >= _LARGE:
            record = struct.pack("<4sQ2H2I4Q", b"PK\6\6", 44, 45, 45, 0, 0, count, count, end - start, start)
            self._out.write(record + struct.pack("<4sIQI", b"PK\6\7", 0, end, 1))
        counted = min(count, 2**16 - 1)
        directory = (counted, counted, _short(end - start), _short(start))
        self._out.write(struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, *directory, 0))
        return self._at


def _short(number: int) -> int:
    return number if number < _LARGE else _ELSEWHERE
