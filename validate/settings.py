"""`[tool.fsdp2]` in pyproject.toml: what a project has settled for all that lint it."""

from __future__ import annotations

import fnmatch
import functools
import importlib.util
import os
import re
import sys
from pathlib import Path
from typing import Any

from .errors import UserError
from .findings import Severity
from .records import record


@record(frozen=True)
class Settings:
    """What `[tool.fsdp2]` says; None or empty where it says nothing.

    Globs are matched against the path relative to `folder`, that of the pyproject.toml; `*` matches `/` too.
    """

    file: str = ""
    folder: str = ""
    select: tuple[str, ...] | None = None
    ignore: tuple[str, ...] = ()
    min_severity: str | None = None
    per_file_ignores: tuple[tuple[str, tuple[str, ...]], ...] = ()
    exclude: tuple[str, ...] = ()
    torch: str | None = None  # the release that the project targets

    def where(self, key: str) -> str:
        """How a message names the place of a key."""
        return f"{self.file}: [tool.fsdp2] {key}:"

    def excludes(self, path: str) -> bool:
        """Whether a file that was met in a folder is to be left alone."""
        return bool(self.exclude) and any(self._matches(glob, path) for glob in self.exclude)

    def ignored_in(self, path: str) -> tuple[str, ...]:
        """What `per-file-ignores` says of a file: codes, their beginnings, or names."""
        return tuple(code for glob, codes in self.per_file_ignores if self._matches(glob, path) for code in codes)

    def _matches(self, glob: str, path: str) -> bool:
        parts = os.path.relpath(path, self.folder).replace(os.sep, "/").split("/")
        glob = glob.removeprefix("./").removeprefix("**/").removesuffix("/**").rstrip("/")
        below = ("/".join(parts[:end]) for end in range(1, len(parts) + 1))  # the file and each folder that holds it
        return any(fnmatch.fnmatchcase(p, glob) or fnmatch.fnmatchcase(p.rpartition("/")[2], glob) for p in below)


def nearest(path: Path) -> Settings:
    """The settings for a file or folder: of the nearest pyproject.toml, at or above it, that has `[tool.fsdp2]`.

    Raises UserError for a file that does not parse, a key that does not exist and a value of another type.
    """
    folder = path if path.is_dir() else path.parent
    return _for_folder(os.path.realpath(folder))


@functools.cache
def _for_folder(folder: str) -> Settings:
    file = Path(folder, "pyproject.toml")
    if file.is_file() and (table := _table(file)) is not None:
        return _read(file, table)
    above = os.path.dirname(folder)  # noqa: PTH120 - strings are what the cache is keyed by
    return Settings() if above == folder else _for_folder(above)


def _table(file: Path) -> Any:
    """The table `[tool.fsdp2]` of a pyproject.toml, None where it has none."""
    try:
        content = file.read_bytes()
    except OSError as error:
        raise UserError(f"{_shown(file)}: cannot be read: {error.strerror}; expected TOML") from error
    if b"fsdp2" not in content:
        return None  # most files: neither parsed nor worth importing a parser for
    if (toml := _toml()) is None:
        if not re.search(rb"^\s*\[\s*tool\s*\.\s*fsdp2\b", content, re.MULTILINE):
            return None
        raise UserError(
            f"{_shown(file)}: [tool.fsdp2] can be read by Python 3.11 or newer; on 3.10 install the package tomli"
        )
    try:
        return toml.loads(content.decode()).get("tool", {}).get("fsdp2")
    except (ValueError, AttributeError) as error:
        raise UserError(f"{_shown(file)}: does not parse: {error}; expected TOML") from error


def _toml() -> Any:
    """The parser of the standard library, which came with Python 3.11, or the package that it was; None without."""
    name = "tomllib" if sys.version_info >= (3, 11) else "tomli"
    return importlib.import_module(name) if importlib.util.find_spec(name) else None


def _read(file: Path, table: Any) -> Settings:
    if not isinstance(table, dict):
        raise UserError(f"{_shown(file)}: tool.fsdp2: expected a table, not {_kind(table)}")
    known = {"select", "ignore", "min-severity", "per-file-ignores", "exclude", "torch"}
    for key in table:
        if key not in known:
            raise UserError(
                f"{_shown(file)}: [tool.fsdp2] {key}: there is no such key; expected one of {', '.join(sorted(known))}"
            )
    where = f"{_shown(file)}: [tool.fsdp2]"
    per_file = table.get("per-file-ignores", {})
    if not isinstance(per_file, dict):
        raise UserError(
            f"{where} per-file-ignores: expected a table from globs to lists of codes, not {_kind(per_file)}"
        )
    severity = table.get("min-severity")
    if severity is not None and severity not in [s.value for s in Severity]:
        raise UserError(f"{where} min-severity: expected info, warn or error, not {severity!r}")
    torch = table.get("torch")
    if torch is not None and not isinstance(torch, str):
        raise UserError(f'{where} torch: expected a release as a string, such as "2.9", not {_kind(torch)}')
    return Settings(
        file=_shown(file),
        folder=str(file.parent),
        select=_strings(where, "select", table["select"]) if "select" in table else None,
        ignore=_strings(where, "ignore", table.get("ignore", [])),
        min_severity=severity,
        per_file_ignores=tuple(
            (glob, _strings(where, f"per-file-ignores {glob!r}", codes)) for glob, codes in per_file.items()
        ),
        exclude=_strings(where, "exclude", table.get("exclude", [])),
        torch=torch,
    )


def _strings(where: str, key: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise UserError(f"{where} {key}: expected a list of strings, not {_kind(value)}")
    return tuple(value)


def _kind(value: Any) -> str:
    kinds = {bool: "a boolean", int: "a number", float: "a number", str: "a string", dict: "a table"}
    return kinds.get(type(value), "a list of other things" if isinstance(value, list) else type(value).__name__)


def _shown(file: Path) -> str:
    return os.path.relpath(file) if file.is_relative_to(Path.cwd()) else str(file)
