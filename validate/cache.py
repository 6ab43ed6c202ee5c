"""What linting a file gave, kept for the next run: until anything that it was linted by has changed.

That is the file, the modules of its project that were read for it, what each import was resolved to (a module that is
there now and was not then counts, too), the release of torch and this linter. Entries are JSON in the user's cache
folder; one that cannot be read, or is not as it should be, is as good as none.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .events import Location
from .findings import Finding, Severity
from .reader.source import Consulted, Project
from .suppressions import Suppression
from .trace import Note

LIFETIME = 30 * 24 * 3600  # seconds that an entry is kept
_SETTLED = 2_000_000_000  # nanoseconds; a file that changed later than that before may change again in the same instant
_HERE = Path(__file__).resolve().parent

# Size in bytes, and time of the last change in nanoseconds, of the inode: no program can set that back. -1, -1 of what
# is not there.
Stamp = tuple[int, int]


@dataclass
class Kept:
    """What is kept of one file."""

    findings: list[Finding]
    comments: list[Suppression]
    notes: list[Note]
    files: tuple[str, ...]


@dataclass
class Cache:
    """The entries below a folder. What is looked up on the disk is looked up once for all entries."""

    folder: Path
    _tool: str = ""
    _since: int = field(default_factory=time.time_ns)
    _stamps: dict[str, Stamp] = field(default_factory=dict)
    _digests: dict[str, str] = field(default_factory=dict)
    _found: dict[tuple[str, ...], str | None] = field(default_factory=dict)

    @classmethod
    def of_user(cls) -> Cache | None:
        """That of the user; None where there is no place for one."""
        base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111 - may fail quietly
        folder = Path(base) / "pytorch-fsdp2-dcp" / "lint"
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError:
            return None
        return cls(folder, _of_tool()) if os.access(folder, os.W_OK) else None

    def key(self, path: Path, name: str, content: bytes, torch: str | None) -> str:
        """What an entry is found by: the file, how it is called, what it holds, and what it is read with."""
        parts = (
            self._tool,
            str(Path.cwd()),
            str(path.absolute()),
            name,
            torch or "",
            hashlib.sha256(content).hexdigest(),
        )
        return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()

    def get(self, key: str, path: Path) -> Kept | None:
        """What is kept under a key, if it still holds."""
        try:
            entry = json.loads(self._file(key).read_bytes())
            if entry["folders"] != [str(f) for f in Project.around(path).folders] or not self._holds(entry):
                return None
            return _read(entry)
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            return None

    def put(self, key: str, kept: Kept, consulted: Consulted) -> None:
        """Keep something. Does nothing where it cannot be written, or may be of files as they no longer are."""
        if any(self._stamp(file)[1] >= self._since for file in consulted.files):
            return
        entry = {
            "folders": [str(folder) for folder in consulted.folders],
            "files": {file: [*self._settled(file), self._digest(file)] for file in consulted.files},
            "lookups": [[list(looked), found] for looked, found in consulted.lookups.items()],
            **_written(kept),
        }
        file = self._file(key)
        with contextlib.suppress(OSError):
            file.parent.mkdir(exist_ok=True, mode=0o700)
            handle, name = tempfile.mkstemp(dir=file.parent)
            with os.fdopen(handle, "w", encoding="utf-8", errors="surrogateescape") as out:
                json.dump(entry, out, separators=(",", ":"))
            os.replace(name, file)  # noqa: PTH105

    def prune(self) -> None:
        """Remove entries that are too old."""
        oldest = time.time() - LIFETIME
        for file in self.folder.glob("*/*"):
            with contextlib.suppress(OSError):
                if file.stat().st_mtime < oldest:
                    file.unlink()

    def _file(self, key: str) -> Path:
        return self.folder / key[:2] / key[2:]

    def _holds(self, entry: Mapping[str, Any]) -> bool:
        """Whether the files that were read are as they were, and each import leads where it led."""
        files = all(
            self._stamp(file) == (size, changed) or self._digest(file) == digest
            for file, (size, changed, digest) in entry["files"].items()
        )
        return files and all(self._find(tuple(looked)) == found for looked, found in entry["lookups"])

    def _find(self, looked: tuple[str, ...]) -> str | None:
        if looked not in self._found:
            found = Project.look(Path(looked[0]), looked[1:])
            self._found[looked] = None if found is None else str(found)
        return self._found[looked]

    def _stamp(self, file: str) -> Stamp:
        if file not in self._stamps:
            try:
                status = os.stat(file)  # noqa: PTH116
                self._stamps[file] = status.st_size, status.st_ctime_ns
            except OSError:
                self._stamps[file] = -1, -1
        return self._stamps[file]

    def _settled(self, file: str) -> Stamp:
        """The stamp to keep of a file: one that never fits where the file may change again without changing that."""
        size, changed = self._stamp(file)
        return (size, changed) if time.time_ns() - changed > _SETTLED else (size, -1)

    def _digest(self, file: str) -> str:
        if file not in self._digests:
            try:
                self._digests[file] = hashlib.sha256(Path(file).read_bytes()).hexdigest()
            except OSError:
                self._digests[file] = ""
        return self._digests[file]


def _of_tool() -> str:
    """Which linter this is: one whose files are of these sizes and times."""
    found = []
    for folder, _, names in os.walk(_HERE):
        for name in names:
            if name.endswith((".py", ".json")):
                status = os.stat(os.path.join(folder, name))  # noqa: PTH116, PTH118
                found.append(f"{folder}/{name} {status.st_size} {status.st_mtime_ns}")
    return hashlib.sha256("\n".join(sorted(found)).encode("utf-8", "surrogateescape")).hexdigest()


# --- as JSON ---


def _written(kept: Kept) -> dict[str, Any]:
    return {
        "findings": [
            [
                f.code,
                f.name,
                f.severity.value,
                f.clause,
                f.message,
                _place(f.at),
                [[_place(at), w] for at, w in f.related],
            ]
            for f in kept.findings
        ],
        "comments": [[_place(c.at), c.first_line, c.last_line, list(c.codes)] for c in kept.comments],
        "notes": [[_place(note.at), note.text] for note in kept.notes],
        "read": list(kept.files),
    }


def _read(entry: Mapping[str, Any]) -> Kept:
    findings = [
        Finding(
            code, name, Severity(severity), clause, message, Location(*at), tuple((Location(*p), w) for p, w in related)
        )
        for code, name, severity, clause, message, at, related in entry["findings"]
    ]
    comments = [Suppression(Location(*at), first, last, tuple(codes)) for at, first, last, codes in entry["comments"]]
    notes = [Note(Location(*at), text) for at, text in entry["notes"]]
    return Kept(findings, comments, notes, tuple(entry["read"]))


def _place(at: Location) -> Sequence[str | int]:
    return [at.file, at.line, at.column]
