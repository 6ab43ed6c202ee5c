"""A folder of a file system or of an fsspec URI: the files in it, and bytes of theirs at a place.

Only regular files inside the folder are ever read: a symbolic link that leads out is an outsider, whoever made it.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path
from typing import Any, Protocol

from ..errors import UserError

OPEN_FILES = 64  # kept open at a time


class Folder(Protocol):
    """What inspecting needs of a place where files lie."""

    where: str  # as the user named it
    name: str  # the last part of that

    def files(self) -> dict[str, int]:
        """The regular files directly in the folder, with their sizes in bytes; no outsiders."""

    def outsiders(self) -> set[str]:
        """Names in the folder that are neither files in it nor folders: links that lead out, sockets, pipes."""

    def folders(self) -> list[str]:
        """The folders in it, by name."""

    def child(self, name: str) -> Folder:
        """A folder in it."""

    def read(self, name: str, offset: int, length: int) -> bytes:
        """These bytes of a file; fewer where it ends earlier. Raises UserError for one that is missing."""


def open_folder(where: str) -> Folder:
    """The folder at a path or URI. Raises UserError when there is none, or fsspec is needed and missing."""
    if "://" in where:
        return _remote(where)
    path = Path(where)
    if not where or not path.is_dir():  # an empty path is the working directory to Path, and a slip of the caller
        what = "is a file" if where and path.exists() else "does not exist"
        raise UserError(
            f"{where or repr(where)}: {what}; expected the folder of a checkpoint, or a folder of such folders"
        )
    return LocalFolder(where)


class LocalFolder:
    """A folder of a mounted file system."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.name = Path(where).absolute().name  # not resolved: a link keeps its own name
        self._path = Path(where)
        self._open: dict[str, int] = {}
        self._files: dict[str, int] = {}
        self._folders: list[str] = []
        self._outsiders: set[str] = set()
        self._look()

    def _look(self) -> None:
        root = os.path.realpath(self._path)
        try:
            entries = sorted(os.scandir(self._path), key=lambda entry: entry.name)
        except OSError as error:
            raise UserError(f"{self.where}: cannot be listed ({error.strerror})") from None
        for entry in entries:
            inside = not entry.is_symlink() or os.path.realpath(entry.path).startswith(root + os.sep)
            try:
                status = entry.stat()
            except OSError:  # a link to nothing, or gone since
                self._outsiders.add(entry.name)
                continue
            if stat.S_ISDIR(status.st_mode):  # wherever it is: metadata names files of its own folder only
                self._folders.append(entry.name)
            elif inside and stat.S_ISREG(status.st_mode):
                self._files[entry.name] = status.st_size
            else:
                self._outsiders.add(entry.name)

    def files(self) -> dict[str, int]:
        return self._files

    def outsiders(self) -> set[str]:
        return self._outsiders

    def folders(self) -> list[str]:
        return self._folders

    def child(self, name: str) -> LocalFolder:
        return LocalFolder(str(Path(self.where) / name))

    def read(self, name: str, offset: int, length: int) -> bytes:
        if name not in self._files:
            raise UserError(f"{self.where}/{name}: missing")
        try:
            if name not in self._open:
                if len(self._open) >= OPEN_FILES:
                    os.close(self._open.pop(next(iter(self._open))))
                self._open[name] = os.open(self._path / name, os.O_RDONLY)
            parts, left = [], length
            while left > 0 and (part := os.pread(self._open[name], left, offset + length - left)):
                parts.append(part)
                left -= len(part)
        except OSError as error:
            raise UserError(f"{self.where}/{name}: cannot be read ({error.strerror})") from None
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def __del__(self) -> None:
        for descriptor in self.__dict__.get("_open", {}).values():
            with contextlib.suppress(OSError):
                os.close(descriptor)


class RemoteFolder:
    """A folder of a file system that fsspec reaches."""

    def __init__(self, where: str, system: Any, path: str) -> None:
        self.where = where.rstrip("/")
        self.name = self.where.rpartition("/")[2]
        self._system, self._path = system, path.rstrip("/")
        try:
            entries = system.ls(self._path, detail=True)
        except FileNotFoundError:
            raise UserError(f"{where}: does not exist; expected the folder of a checkpoint") from None
        except Exception as error:  # whatever the service's client raises
            raise UserError(
                f"{where}: cannot be listed ({type(error).__name__}: {' '.join(str(error).split())})"
            ) from None
        names = {entry["name"].rstrip("/").rpartition("/")[2]: entry for entry in entries}
        self._files = {name: entry["size"] or 0 for name, entry in sorted(names.items()) if entry["type"] == "file"}
        self._folders = sorted(name for name, entry in names.items() if entry["type"] == "directory")

    def files(self) -> dict[str, int]:
        return self._files

    def outsiders(self) -> set[str]:
        return set()

    def folders(self) -> list[str]:
        return self._folders

    def child(self, name: str) -> RemoteFolder:
        return RemoteFolder(f"{self.where}/{name}", self._system, f"{self._path}/{name}")

    def read(self, name: str, offset: int, length: int) -> bytes:
        if name not in self._files:
            raise UserError(f"{self.where}/{name}: missing")
        end = min(offset + length, self._files[name])
        if end <= offset:
            return b""
        try:
            return bytes(self._system.cat_file(f"{self._path}/{name}", start=offset, end=end))
        except Exception as error:
            why = " ".join(str(error).split())
            raise UserError(f"{self.where}/{name}: cannot be read ({type(error).__name__}: {why})") from None


def _remote(where: str) -> Folder:
    try:
        import fsspec  # type: ignore[import-untyped]
    except ImportError:
        raise UserError(f"{where}: a URI is read by the package fsspec, which is missing: pip install fsspec") from None
    try:
        system, path = fsspec.core.url_to_fs(where)
    except (ImportError, ValueError) as error:  # no such protocol, or the package that speaks it is missing
        raise UserError(f"{where}: fsspec cannot open it ({' '.join(str(error).split())})") from None
    if "file" in system.protocol:  # `file://` is a path after all, and links in it are looked at as such
        return open_folder(path)
    return RemoteFolder(where, system, path)
