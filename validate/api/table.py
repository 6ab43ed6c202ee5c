"""The table of torch's distributed API, and what it tells of a name or of a call's arguments.

A name is dotted, by any path that leads to it: `torch.distributed.fsdp.fully_shard`,
`torch.distributed.fsdp.FSDPModule.unshard`. The table is read when it is first asked.
"""

from __future__ import annotations

import ast
import functools
import json
from collections.abc import Sequence
from pathlib import Path

from ..records import record

COVERED = ("torch.distributed", "torch.accelerator", "torch.nn.utils", "torch.nn.modules.module")
_FILE = Path(__file__).with_name("torch.json")
# Accept the writer or reader as a second positional argument too, as they once did (torch's `_api_bc_check`).
_OLD_ORDER = {
    f"torch.distributed.checkpoint.{module}.{function}"
    for module, function in (
        ("state_dict_saver", "save"), ("state_dict_saver", "async_save"), ("state_dict_loader", "load"),
    )
}  # fmt: skip

Release = str  # "2.9"


class Presence:
    """What is known of a name in one release."""

    def __init__(self, known: bool, name: str = "", text: str = "") -> None:
        self.known = known  # False: it may be there, the table does not tell
        self.name = name  # where it is defined
        self.text = text  # what it is, as in the table; empty when the release does not have it

    @property
    def absent(self) -> bool:
        """Whether the release does not have the name."""
        return self.known and not self.text


_UNKNOWN = Presence(known=False)
_ABSENT = Presence(known=True)


@record(frozen=True)
class Parameters:
    """What a call may pass."""

    positional: tuple[str, ...]
    keyword: frozenset[str]
    any_positional: bool
    any_keyword: bool

    def takes(self, argument: str) -> bool:
        """Whether there is such an argument; `#3` is the third by position."""
        if argument.startswith("#"):
            return self.any_positional or int(argument[1:]) <= len(self.positional)
        return self.any_keyword or argument in self.keyword


@record(frozen=True)
class _Table:
    releases: tuple[Release, ...]
    foreign: dict[str, str]
    names: dict[str, str | dict[str, str | None]]


@functools.cache
def _table() -> _Table:
    read = json.loads(_FILE.read_bytes())
    return _Table(tuple(read["releases"]), read["foreign"], read["names"])


def releases() -> tuple[Release, ...]:
    """The releases that the table knows, oldest first."""
    return _table().releases


def number(release: Release) -> tuple[int, ...]:
    """A release as numbers, for comparing."""
    return tuple(map(int, release.split(".")))


@functools.cache
def find(name: str, release: Release) -> Presence:
    """What a release has under a name."""
    return _find(name, release, 0)


@functools.cache
def _lasts() -> frozenset[str]:
    return frozenset(name.rpartition(".")[2] for name in _table().names)


def has_last(name: str) -> bool:
    """Whether anything in the table goes by this name, without what it belongs to."""
    return name in _lasts()


@functools.cache
def history(name: str) -> dict[Release, bool]:
    """Which releases have the name and which do not, without those of which the table does not tell."""
    return {r: not present.absent for r in releases() if (present := find(name, r)).known}


@functools.cache
def lacked(name: str) -> bool:
    """Whether some release is known not to have the name."""
    if isinstance(text := _table().names.get(name), str) and not text.startswith("="):
        return False
    return not all(history(name).values())


@functools.cache
def refused(name: str, positional: int, keywords: tuple[str, ...]) -> tuple[str, ...]:
    """Which arguments of a call some release that has the callable does not take; `#3` is the third by position."""
    arguments = [*keywords, f"#{positional}"] if positional else list(keywords)
    return tuple(a for a in arguments if not all(argument_history(name, a).values()))


@functools.cache
def argument_history(name: str, argument: str) -> dict[Release, bool]:
    """Which releases take the argument and which do not, without those that do not have the callable at all."""
    known = ((release, parameters_of(name, release)) for release in releases())
    return {release: parameters.takes(argument) for release, parameters in known if parameters is not None}


@functools.cache
def parameters_of(name: str, release: Release) -> Parameters | None:
    """What a call of the function, class or method may pass; None where that is not known."""
    present = find(name, release)
    if present.text.startswith("class("):
        present = find(f"{name}.__init__", release)
        if not present.known or not present.text:
            return None
    if "(" not in present.text or present.text.startswith("class"):
        return None
    how, _, rest = present.text.partition("(")
    own = how != "staticmethod" and rest.startswith(("self", "cls"))
    return _parsed("(" + rest, own, present.name in _OLD_ORDER)


@functools.cache
def _parsed(signature: str, bound: bool, one_more: bool) -> Parameters:
    function = ast.parse(f"def f{signature}: ...").body[0]
    assert isinstance(function, ast.FunctionDef)
    spec = function.args
    positional = [a.arg for a in (*spec.posonlyargs, *spec.args)][bound:]
    only = max(0, len(spec.posonlyargs) - bound)
    keyword = frozenset((*positional[only:], *(a.arg for a in spec.kwonlyargs)))
    if one_more:
        positional.append(spec.kwonlyargs[0].arg)
    return Parameters(tuple(positional), keyword, spec.vararg is not None, spec.kwarg is not None)


def binds(name: str) -> bool:
    """Whether a call of `Class.method` passes the instance too."""
    outer = name.rpartition(".")[0]
    return is_class(outer) and find(name, releases()[-1]).text.startswith("(self")


def is_class(name: str) -> bool:
    """Whether the newest release has a class of that name."""
    return find(name, releases()[-1]).text.startswith("class(")


def closest(name: str, release: Release) -> str | None:
    """A public name of the same module or class that looks like this one."""
    outer, _, last = name.rpartition(".")
    home = find(outer, release).name or outer
    beside = [n[len(home) + 1 :] for n in _table().names if n.startswith(home + ".")]
    here = [n for n in beside if "." not in n and n[0] != "_" and not find(f"{home}.{n}", release).absent]
    return _closest(last, here)


def elsewhere(name: str, release: Release) -> str | None:
    """Where else a release has what it does not have under this name."""
    last = "." + name.rpartition(".")[2]
    found = [n for n in _table().names if n.endswith(last) and "._" not in n and find(n, release).text]
    found = [n for n in found if find(n.rpartition(".")[0], release).text.startswith("module")]
    return min(found, key=lambda n: (n.count("."), n), default=None)


def closest_argument(name: str, argument: str, release: Release) -> str | None:
    """A parameter that looks like this one."""
    parameters = parameters_of(name, release)
    return _closest(argument, sorted(parameters.keyword)) if parameters is not None else None


def _closest(name: str, others: Sequence[str]) -> str | None:
    import difflib  # only where something is found

    return next(iter(difflib.get_close_matches(name, others, 1, 0.75)), None)


def _find(name: str, release: Release, depth: int) -> Presence:
    if depth > 12:
        return _UNKNOWN
    table = _table()
    if (entry := table.names.get(name)) is not None:
        text = entry if isinstance(entry, str) else _in_force(entry, release)
        if text is None:
            return _inherited(name, release, depth)
        return _find(text[2:], release, depth + 1) if text.startswith("= ") else Presence(True, name, text)
    return _inherited(name, release, depth)


def _inherited(name: str, release: Release, depth: int) -> Presence:
    """A name that has no line of its own: of a class, its bases may have it; of a module, it is not there."""
    outer, _, last = name.rpartition(".")
    if not outer:
        return _UNKNOWN
    owner = _find(outer, release, depth + 1)
    if owner.text == "module":
        foreign = _table().foreign.get(owner.name, "").split()
        return _UNKNOWN if last.startswith("_") or last in foreign else _ABSENT
    if owner.text.startswith("class("):
        if owner.name != outer:
            return _find(f"{owner.name}.{last}", release, depth + 1)
        if last.startswith("__") or _find_own(f"{outer}.__getattr__", release):
            return _UNKNOWN
        found = [_find(f"{base}.{last}", release, depth + 1) for base in _bases(owner.text)]
        return next((f for f in found if not f.absent), _ABSENT)
    return _UNKNOWN


def _find_own(name: str, release: Release) -> bool:
    entry = _table().names.get(name)
    return entry is not None and (isinstance(entry, str) or _in_force(entry, release) is not None)


def _bases(text: str) -> Sequence[str]:
    return [base.strip() for base in text[len("class(") : -1].split(",") if base.strip()]


def _in_force(history: dict[str, str | None], release: Release) -> str | None:
    text = None
    for since, then in history.items():
        if number(since) > number(release):
            break
        text = then
    return text
