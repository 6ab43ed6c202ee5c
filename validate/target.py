"""The torch that a program is written for: as the user says, else as its project pins it. Nothing is imported."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterable
from pathlib import Path

from .errors import UserError
from .records import record

ROOTS = (".git", ".hg", "setup.py", "setup.cfg")  # what marks the folder above which no project reaches
LOCKS = ("uv.lock", "poetry.lock", "pdm.lock")
_REQUIREMENT = re.compile(r"""^\s*["']?torch\s*(?:\[[^\]]*\])?\s*\(?\s*([~=<>!][^;"'#)]*)""", re.IGNORECASE)
_POETRY = re.compile(r"""^\s*torch\s*=\s*(?:\{.*?version\s*=\s*)?["']([^"']*)["']""", re.MULTILINE)
_LOCKED = re.compile(r"""^name = "torch"\nversion = "(\d+\.\d+)""", re.MULTILINE)
_ASKED = re.compile(r"""["']torch["'\s\[(<>=!~;@]|^\s*torch\s*=""", re.MULTILINE)
_INLINE = re.compile(r"^# /// script\n((?:#(?: .*)?\n)*?)# ///$", re.MULTILINE)


@record(frozen=True)
class Pin:
    """A release of torch (`2.9`) and who says so (`torch>=2.9 in pyproject.toml`)."""

    release: str
    said: str


class Target:
    """The target of one program; its project is searched when a rule first asks.

    `given` is what the user says, a release such as `2.9`; `text` the program's source where it is not in a file.
    """

    def __init__(self, path: Path, text: str | None = None, given: str | None = None) -> None:
        self._path, self._text, self._given = path, text, given

    @functools.cached_property
    def pin(self) -> Pin | None:
        """The release, None where nothing tells."""
        if self._given is not None:
            return Pin(self._given, f"torch {self._given} was given")
        return self._inline() or _above(os.path.realpath(self._path.parent))

    def _inline(self) -> Pin | None:
        """The dependencies that a script states itself (PEP 723)."""
        text = self._text if self._text is not None else _content(self._path)
        block = _INLINE.search(text)
        if block is None:
            return None
        lines = re.findall(r"""["']([^"']*)["']""", re.sub(r"^# ?", "", block[1], flags=re.MULTILINE))
        return _lowest_bounds(lines, "the script's own dependencies")


def parse(text: str, where: str) -> str:
    """The release that the user names: `2.9`, `2.9.1` or `2.9.1+cpu`. Raises UserError for anything else."""
    match = re.fullmatch(r"(\d+\.\d+)(\.\d+)?([+.a-z]\w*)?", text.strip())
    if match is None:
        raise UserError(f"{where} {text}: not a release of torch; expected one such as 2.9")
    return match[1]


@functools.cache
def _above(folder: str) -> Pin | None:
    """What the nearest of this folder and those above it says, up to the root of the project."""
    here = Path(folder)
    if (pin := _in_folder(here)) is not None:
        return pin
    is_root = any((here / mark).exists() for mark in ROOTS)
    above = here.parent
    return None if is_root or above == here else _above(str(above))


def _in_folder(folder: Path) -> Pin | None:
    """A lock tells what is installed; where there is none, the requirements tell what the project says it runs on.

    A torch that is locked only since something else needs it is not what the program is written for: a project that
    does not ask for torch itself has its users install one, a nightly say.
    """
    project = _content(folder / "pyproject.toml")
    for name in LOCKS if not project or _ASKED.search(project) else ():
        if found := _LOCKED.findall(_content(folder / name)):
            release = max(found, key=_number)
            return Pin(release, f"torch {release} is locked in {name}")
    if (pin := _in_pyproject(project)) is not None:
        return pin
    files = sorted(folder.glob("requirements*.txt"), key=lambda f: (len(f.name), f.name))
    return next((pin for f in files if (pin := _lowest_bounds(_content(f).splitlines(), f.name)) is not None), None)


def _in_pyproject(text: str) -> Pin | None:
    """The project's own dependencies, then those of its extras and groups. Read by line: it need not be valid TOML."""
    if "torch" not in text:
        return None
    own, other, poetry = [], [], []
    table, is_own = "", False
    for line in text.splitlines():
        if header := re.match(r"\s*\[\[?([^\[\]]+)\]\]?\s*(#.*)?$", line):
            table, is_own = header[1].replace('"', "").strip(), False
        if table == "project":
            if key := re.match(r"\s*([\w-]+)\s*=", line):
                is_own = key[1] == "dependencies"
            if is_own:
                own += _quoted(line)
        elif table.startswith(("project.optional-dependencies", "dependency-groups")):
            other += _quoted(line)
        elif table.startswith("tool.poetry") and table.endswith("dependencies"):
            poetry += _POETRY.findall(line)
    if (pin := _lowest_bounds(own, "pyproject.toml")) is not None:
        return pin
    if poetry:  # `^2.6` is a lower bound; a bare version is exact
        bounds = [f"torch{v if v[:1] in '~=<>!' else '>=' + v.lstrip('^')}" for v in poetry if v[:1] not in "*"]
        if (pin := _lowest_bounds(bounds, "pyproject.toml")) is not None:
            return pin
    return _lowest_bounds(other, "pyproject.toml")


def _quoted(line: str) -> list[str]:
    return [text for _, text in re.findall(r"""(["'])(.*?)\1""", line)]


def _lowest_bounds(requirements: Iterable[str], file: str) -> Pin | None:
    """The oldest torch that requirements allow. Of several, as for different platforms, the one that asks for most."""
    pins: list[Pin] = []
    for requirement in requirements:
        match = _REQUIREMENT.match(requirement)
        if match is None:
            continue
        bounds = [_bound(part) for part in match[1].split(",")]
        if releases := [b for b in bounds if b is not None]:
            release = max(releases, key=_number)
            pins.append(Pin(release, f"torch{match[1].strip()} in {file}"))
    return max(pins, key=lambda p: _number(p.release), default=None)


def _bound(specifier: str) -> str | None:
    """The release from which on a specifier allows torch; None for an upper bound."""
    match = re.match(r"\s*(===?|~=|>=?)\s*v?(\d+)(?:\.(\d+))?", specifier)
    if match is None:
        return None
    how, major, minor = match.groups()
    if minor is None:
        return f"{major}.0" if how != "==" else None
    return f"{major}.{int(minor) + (how == '>')}"


def _number(release: str) -> tuple[int, ...]:
    return tuple(map(int, release.split(".")))


def _content(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
