"""Source files: reading and parsing them, and finding the modules of the project that they import."""

from __future__ import annotations

import ast
import functools
import os
import re
import stat
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import UserError
from ..records import record
from ..sources import decode
from ..target import ROOTS

MODULE_LIMIT = 80  # project modules read for one program
FAR_LIMIT = 30  # of them, those that are found from the root of the project alone: its libraries, mostly
INSTALLED = ("site-packages", "dist-packages")  # what lies side by side there are libraries, not parts of one project
SIZE_LIMIT = 600_000  # bytes; what is larger is data or generated

_ROOTS = ("pyproject.toml", *ROOTS)  # a part of a workspace is a project of its own
# A module of the project's libraries that has none of this is one of any library.
_OF_USE = re.compile(rb"torch\.distributed|torch import distributed|fully_shard|DTensor|nn\.Module")


@record(frozen=True, eq=False)
class SourceFile:
    """A parsed file; `name` is how messages call it. `far`: it was found from the root of the project alone."""

    path: Path
    name: str
    tree: ast.Module
    far: bool = False


def load(path: Path, text: str | None) -> SourceFile:
    """Parse a file. Raises UserError when it is not found, not UTF-8 or does not parse."""
    name = str(path)
    if text is None:
        text = _text(path, name)
    try:
        return SourceFile(path, name, _parse(text, name))
    except SyntaxError as error:
        what = (error.msg or "invalid syntax").splitlines()[0]
        raise UserError(f"{name}:{error.lineno or 1}: does not parse: {what}; expected Python source") from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise UserError(f"{name}: does not parse: {error or 'nested too deeply'}; expected Python source") from error


def _text(path: Path, name: str) -> str:
    try:
        content = path.read_bytes()
    except FileNotFoundError as error:
        raise UserError(f"{name}: no such file; expected a Python file") from error
    except OSError as error:
        raise UserError(f"{name}: cannot be read: {error.strerror}; expected a Python file") from error
    return decode(name, content)


@functools.lru_cache(maxsize=512)  # what is linted itself may be imported by another
def _parse(text: str, name: str) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an invalid escape sequence in the user's file is not our business
        return ast.parse(text.removeprefix("\ufeff"), name)


@record(frozen=True)
class Consulted:
    """What was looked at on the disk for a program: had any of it been different, the program might be another.

    `folders`: as those of `Project`; `files`: those that were opened, by their paths; `lookups`: what the name of a
    module, by its parts, was found to be in a folder, None where there was nothing.
    """

    folders: tuple[Path, ...]
    files: tuple[str, ...]
    lookups: Mapping[tuple[str, ...], str | None]


@dataclass
class Project:
    """Where the modules of a program are looked for: the folders of its entry and of its packages, and its root.

    `texts`: what some files (by their real paths) are taken to hold, whatever is on the disk.
    """

    folders: list[Path]
    absolute: bool = False  # the entry was named by an absolute path, and so is all that it imports
    texts: Mapping[str, str] = field(default_factory=dict)
    near: tuple[str, ...] = ()  # the folders without the root, as absolute paths
    _far: dict[Path, bool] = field(default_factory=dict)  # modules outside of these, and whether they are read
    _files: dict[Path, SourceFile | None] = field(default_factory=dict)
    _found: dict[tuple[str, ...], Path | None] = field(default_factory=dict)  # what each name is, looked up once

    @classmethod
    def around(cls, entry: Path, texts: Mapping[str, str] | None = None) -> Project:
        """The project of a program that starts at `entry`: Python's own rule first, then the tops of its packages.

        Then what is installed of the project, or on the path of those who work on it: its root, and `src` below that.
        """
        folder = entry.parent
        folders = [folder]
        while (folder / "__init__.py").is_file() and folder != folder.parent:
            folder = folder.parent
            folders.append(folder)
        near = tuple(os.path.abspath(f) for f in folders)  # noqa: PTH100 - links are not followed by Python either
        folders += [Path(f) for f in _roots(near[-1]) if f not in near]
        return cls([f for f in folders if f.name not in INSTALLED], entry.is_absolute(), texts or {}, near)

    def find(self, module: str) -> Path | None:
        """The file of a dotted module name; for a package its `__init__.py`, for one without it the folder."""
        parts = module.split(".")
        for folder in self.folders:
            if (found := self._below(folder, parts)) is not None:
                return found
        return None

    def relative(self, importer: Path, level: int, module: str | None) -> Path | None:
        """The file that `from ..module import` in the file `importer` means."""
        folder = importer.parent
        for _ in range(level - 1):
            folder = folder.parent
        return self._below(folder, module.split(".") if module else [])

    def submodule(self, package: Path, name: str) -> Path | None:
        """The file of `name` in the package whose file (or folder) is `package`."""
        folder = package if package.is_dir() else package.parent
        if package.is_file() and package.name != "__init__.py":
            return None
        return self._below(folder, [name])

    def load(self, path: Path) -> SourceFile | None:
        """The parsed file; None when it cannot be read, does not parse or is one too many."""
        if path not in self._files:
            self._files[path] = self._load(path)
        return self._files[path]

    def names(self) -> list[str]:
        """The names of the files read so far."""
        return [file.name for file in self._files.values() if file is not None]

    def trees(self) -> list[ast.Module]:
        """The trees of the files read so far."""
        return [file.tree for file in self._files.values() if file is not None]

    @property
    def goes_far(self) -> bool:
        """Whether the program uses modules that are found from the root of the project alone."""
        return bool(self._far)

    def consulted(self) -> Consulted:
        """What was looked at so far."""
        found = {looked: None if path is None else str(path) for looked, path in self._found.items()}
        return Consulted(tuple(self.folders), tuple(map(str, self._files)), found)

    def _load(self, path: Path) -> SourceFile | None:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            return SourceFile(path, self._shown(path), ast.Module([], []))
        if len(self.names()) >= MODULE_LIMIT or status.st_size > SIZE_LIMIT:
            return None
        if self.texts and (text := self.texts.get(os.path.realpath(path))) is not None:
            return SourceFile(path, self._shown(path), load(path, text).tree)
        tree = _parsed(path, status.st_ctime_ns)
        return SourceFile(path, self._shown(path), tree, path in self._far) if tree is not None else None

    def _shown(self, path: Path) -> str:
        """The path as a user would write it: relative to the working directory when below it."""
        if path.is_absolute() and not self.absolute and path.is_relative_to(Path.cwd()):
            return os.path.relpath(path)
        return str(path)

    def _below(self, folder: Path, parts: list[str]) -> Path | None:
        key = (str(folder), *parts)
        if key not in self._found:
            self._found[key] = self.look(folder, parts)
        found = self._found[key]
        return found if found is not None and self._is_of_use(found) else None

    def _is_of_use(self, path: Path) -> bool:
        """Whether a module is the program's own, or one of the first from elsewhere that may matter to it."""
        if path in self._far:
            return self._far[path]
        if not self.near or os.path.abspath(path).startswith(os.path.join(self.near[-1], "")):  # noqa: PTH100, PTH118
            return True
        self._far[path] = sum(self._far.values()) < FAR_LIMIT and _may_matter(path)
        if not self._far[path]:
            self._files.setdefault(path, None)  # it was looked into
        return self._far[path]

    @staticmethod
    def look(folder: Path, parts: Sequence[str]) -> Path | None:
        """The file, or folder, of a module whose dotted name has these parts; None when there is none in `folder`."""
        # Of texts: to make a Path takes longer than to ask whether there is one, and most of these there are not.
        path = os.path.join(folder, *parts)  # noqa: PTH118
        if os.path.isfile(package := os.path.join(path, "__init__.py")):  # noqa: PTH113, PTH118
            return Path(package)
        if parts and os.path.isfile(path + ".py"):  # noqa: PTH113
            return Path(path + ".py")
        return Path(path) if os.path.isdir(path) and any(Path(path).glob("*.py")) else None  # noqa: PTH112


def _may_matter(path: Path) -> bool:
    """Whether a module of one of the project's libraries has to do with models or several ranks, or leads to others."""
    if path.name == "__init__.py" or path.is_dir():
        return True
    try:
        return path.stat().st_size <= SIZE_LIMIT and _OF_USE.search(path.read_bytes()) is not None
    except OSError:
        return False


@functools.cache
def _roots(folder: str) -> tuple[str, ...]:
    """The root of the project that a folder lies in, with its `src`; nothing for a library that is installed."""
    here = Path(folder)
    if not set(INSTALLED).isdisjoint(here.parts):
        return ()
    root = next((f for f in (here, *here.parents) if any((f / mark).exists() for mark in _ROOTS)), None)
    return () if root is None else tuple(str(f) for f in (root, root / "src") if f.is_dir())


@functools.lru_cache(maxsize=4096)
def real(path: Path) -> str:
    """The path without symbolic links: the same for the same file."""
    return os.path.realpath(path)


@functools.lru_cache(maxsize=512)
def _parsed(path: Path, _changed: int) -> ast.Module | None:
    """The tree of a module, parsed once for all programs that import it; None when it cannot be parsed."""
    try:
        return load(path, None).tree
    except UserError:
        return None
