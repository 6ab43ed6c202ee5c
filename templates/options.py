"""The questions that a generated script is the answer to: one declaration each, checked one by one and as a set."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ..validate.errors import UserError

Answers = dict[str, str]
"""The chosen value of every option, by the option's name."""


@dataclass(frozen=True, kw_only=True)
class Option:
    """One question.

    * `name`: as in the script's header; the flag is made from it.
    * `default`: the value when none is chosen.
    * `values`: what can be chosen, in words, one entry a choice; `examples`: values that together take every branch of
      the templates.
    * `check`: raises UserError, without naming the option, for a value that cannot be used.
    """

    name: str
    help: str
    default: str
    values: tuple[str, ...]
    examples: tuple[str, ...]
    check: Callable[[str], None]

    @property
    def flag(self) -> str:
        """How the option is written on the command line."""
        return "--" + self.name.replace("_", "-")

    def refuse(self, value: str) -> None:
        """Raise UserError, with the flag and the reason, for a value that cannot be used."""
        try:
            self.check(value)
        except UserError as error:
            raise UserError(f"{self.flag} {value}: {error}") from error


DIMS = ("dp_replicate", "dp_shard", "tp")
"""The names of mesh dims, in the order in which a mesh has them."""


def parse_mesh(text: str) -> dict[str, int]:
    """The sizes of the mesh dims, by name; -1 fills the world. Raises UserError for what is not a mesh."""
    sizes: dict[str, int] = {}
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\w+)\s*=\s*(-?\d+)\s*", part)
        if match is None:
            raise UserError(f"`{part}` is not a mesh dim; expected dim=size by comma, such as dp_shard=-1")
        dim, size = match[1], int(match[2])
        if dim not in DIMS:
            raise UserError(f"there is no mesh dim `{dim}`; expected some of {', '.join(DIMS)}")
        if dim in sizes:
            raise UserError(f"`{dim}` is there twice; expected each mesh dim once")
        if size != -1 and size < 1:
            raise UserError(f"`{dim}` has size {size}; expected 1 or more, or -1 to fill the world")
        sizes[dim] = size
    if list(sizes) != sorted(sizes, key=DIMS.index):
        raise UserError(f"the dims are in the order {', '.join(sizes)}; expected the order {', '.join(DIMS)}")
    if sum(size == -1 for size in sizes.values()) > 1:
        raise UserError("several dims have size -1; expected one at most to fill the world")
    return sizes


def _check_mesh(text: str) -> None:
    sizes = parse_mesh(text)
    if list(sizes) != ["dp_shard"]:
        raise UserError("this version shards over one mesh dim; expected dp_shard=-1 or dp_shard=SIZE")


def _one_of(*values: str) -> Callable[[str], None]:
    def check(value: str) -> None:
        if value not in values:
            raise UserError(f"expected {' or '.join(values)}")

    return check


OPTIONS = (
    Option(
        name="mesh",
        help="how the ranks are arranged; -1 fills the world",
        default="dp_shard=-1",
        values=("dp_shard=-1", "dp_shard=SIZE"),
        examples=("dp_shard=-1", "dp_shard=2"),
        check=_check_mesh,
    ),
    Option(
        name="async_mode",
        help="whether training goes on while a checkpoint is written",
        default="async",
        values=("disabled", "async"),
        examples=("disabled", "async"),
        check=_one_of("disabled", "async"),
    ),
)


def answer(chosen: Mapping[str, str]) -> Answers:
    """A whole set of answers from those chosen, by option name. Raises UserError for what cannot work."""
    if unknown := sorted(chosen.keys() - {option.name for option in OPTIONS}):
        known = ", ".join(option.name for option in OPTIONS)
        raise UserError(f"there is no option `{unknown[0]}`; expected some of {known}")
    answers = {option.name: chosen.get(option.name, option.default).replace(" ", "") for option in OPTIONS}
    for option in OPTIONS:
        option.refuse(answers[option.name])
    return answers
