"""The `# /// fsdp2` block at the head of a generated script: the answers it was made from, and how to drive it.

The block is a comment, in the manner of PEP 723, and what it comments out is TOML, of which only the part used here is
read: `key = value` lines with JSON values, under `[section]` lines. Python 3.10 has no TOML reader.

    # /// fsdp2
    # version = "0.1.0"
    # digest = "0123456789abcdef"
    # [answers]
    # async_mode = "async"
    # [validate]
    # checkpoint_arg = "--checkpoint-dir"
    # steps_arg = "--steps"
    # proof_args = "--steps 8"
    # ///
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from dataclasses import dataclass
from typing import Any

from .errors import UserError

_BLOCK = re.compile(r"^# /// fsdp2[ \t]*\n(?P<lines>(?:#.*\n)*?)# ///[ \t]*$", re.MULTILINE)
_OPENING = re.compile(r"^# /// fsdp2[ \t]*$", re.MULTILINE)
_KEY = re.compile(r"[A-Za-z0-9_-]+")

Sections = dict[str, dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Header:
    """What a generated script carries.

    * `version`: of the generator; `answers`: the options it was given, by name.
    * `digest`: of the script without the block, so that edits by hand can be told from a newer generator's output.
    * `checkpoint_arg`, `steps_arg`: the flags that set the checkpoint directory and the number of optimizer steps.
    * `proof_args`: arguments that make a run small enough to prove things by (seconds on CPU ranks).
    """

    version: str
    answers: dict[str, str]
    digest: str
    checkpoint_arg: str
    steps_arg: str
    proof_args: tuple[str, ...]


def render(header: Header) -> str:
    """The block as source lines, without a final newline."""
    sections: Sections = {
        "": {"version": header.version, "digest": header.digest},
        "answers": dict(header.answers),
        "validate": {
            "checkpoint_arg": header.checkpoint_arg,
            "steps_arg": header.steps_arg,
            "proof_args": shlex.join(header.proof_args),
        },
    }
    lines = ["# /// fsdp2"]
    for section, entries in sections.items():
        if section and entries:
            lines.append(f"# [{section}]")
        for key, value in entries.items():
            assert _KEY.fullmatch(key), key
            lines.append(f"# {key} = {json.dumps(value, ensure_ascii=False)}")
    lines.append("# ///")
    return "\n".join(lines)


def parse(text: str) -> Header | None:
    """The header that a script carries, None for a script without one.

    Raises UserError for a block that is not closed, is there twice, or does not hold what a header holds.
    """
    openings = list(_OPENING.finditer(text))
    if not openings:
        return None
    line = text.count("\n", 0, openings[0].start()) + 1
    block = _BLOCK.search(text)
    if block is None or block.start() != openings[0].start():
        raise UserError(f"the `# /// fsdp2` block of line {line} is not closed; expected a line `# ///` after it")
    if len(openings) > 1:
        again = text.count("\n", 0, openings[1].start()) + 1
        raise UserError(f"there is a second `# /// fsdp2` block in line {again}; expected one, that of line {line}")
    sections = _sections(block["lines"], line + 1)
    return Header(
        version=_string(sections, "", "version", line),
        answers={key: _string(sections, "answers", key, line) for key in sections.get("answers", {})},
        digest=_string(sections, "", "digest", line),
        checkpoint_arg=_string(sections, "validate", "checkpoint_arg", line),
        steps_arg=_string(sections, "validate", "steps_arg", line),
        proof_args=_words(sections, "validate", "proof_args", line),
    )


def digest(text: str) -> str:
    """A digest of a script that does not depend on its block, which carries it."""
    return hashlib.sha256(_BLOCK.sub("", text).encode()).hexdigest()[:16]


def _sections(lines: str, first: int) -> Sections:
    sections: Sections = {"": {}}
    section = ""
    for number, line in enumerate(lines.splitlines(), first):
        content = line[1:].strip()
        if not content:
            continue
        if content.startswith("[") and content.endswith("]"):
            section = content[1:-1].strip()
            if section in sections:
                raise UserError(f"line {number} of the `# /// fsdp2` block opens [{section}] again; expected it once")
            sections[section] = {}
            continue
        key, equals, value = content.partition("=")
        key = key.strip()
        if not equals or not _KEY.fullmatch(key):
            raise UserError(f"line {number} of the `# /// fsdp2` block is `{content}`; expected `key = JSON value`")
        if key in sections[section]:
            raise UserError(f"line {number} of the `# /// fsdp2` block sets `{key}` again; expected it once")
        try:
            sections[section][key] = json.loads(value)
        except json.JSONDecodeError as error:
            raise UserError(
                f"line {number} of the `# /// fsdp2` block: {value.strip()!r} is not JSON ({error.msg}); "
                f"expected `{key} = JSON value`"
            ) from error
    return sections


def _string(sections: Sections, section: str, key: str, line: int) -> str:
    value = sections.get(section, {}).get(key)
    if not isinstance(value, str):
        where = f" under [{section}]" if section else ""
        what = "has no" if value is None else "has no string as"
        raise UserError(f'the `# /// fsdp2` block of line {line} {what} `{key}`{where}; expected `{key} = "..."`')
    return value


def _words(sections: Sections, section: str, key: str, line: int) -> tuple[str, ...]:
    value = _string(sections, section, key, line)
    try:
        return tuple(shlex.split(value))
    except ValueError as error:
        raise UserError(
            f"the `# /// fsdp2` block of line {line} has `{key} = {json.dumps(value)}` ({error}); "
            "expected arguments as in a shell"
        ) from error
