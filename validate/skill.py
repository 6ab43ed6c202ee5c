"""Give the skill to a coding agent: copy it to where the agent looks for skills.

The copy is whole: an agent runs `python <skill-dir> VERB` in it, with nothing installed. A copy that is there is
replaced, which is how to update one; anything else of that name is left alone.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path

from .errors import UserError

EXAMPLES = (
    "fsdp2 skill install --target claude",
    "fsdp2 skill install --target codex --user",
)

ROOT = Path(__file__).resolve().parents[1]
NAME = "pytorch-fsdp2-dcp"
PARTS = ("SKILL.md", "__main__.py", "references", "recipes", "templates", "validate")  # all that the skill consists of
TARGETS = {  # where each client looks, in a project as in the user's home
    "claude": ".claude/skills",  # https://code.claude.com/docs/en/skills
    "codex": ".agents/skills",  # https://developers.openai.com/codex/skills; several other clients look there too
    "cursor": ".cursor/skills",  # https://cursor.com/docs/context/skills
    "gemini": ".gemini/skills",  # https://geminicli.com/docs/cli/using-agent-skills
}


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `skill`."""
    parser.add_argument("action", choices=("install",), metavar="install", help="the one thing to do")
    parser.add_argument("--target", required=True, choices=tuple(TARGETS), help="whose folder of skills")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--project", action="store_true", help="for the project in the current folder (the default)")
    where.add_argument("--user", action="store_true", help="for all projects, in your home")


def run(arguments: argparse.Namespace) -> int:
    """Copy, and print where to; return the exit code."""
    home = Path.home() if arguments.user else Path.cwd()
    destination = home / TARGETS[arguments.target] / NAME
    install(destination)
    print(destination)
    return 0


def install(destination: Path) -> None:
    """Put a copy of the skill at `destination`, whole or not at all. Raises UserError when something else is there."""
    there = destination.exists() or destination.is_symlink()
    if there and (destination.is_symlink() or not _is_the_skill(destination)):
        raise UserError(f"{destination} is there and is no copy of this skill; expected none: move it away first")
    if destination.resolve() == ROOT:
        raise UserError(f"{destination} is the skill that runs; expected another one to copy from")
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{NAME}-", dir=destination.parent) as scratch:
            new, old = Path(scratch, "new"), Path(scratch, "old")
            new.mkdir()
            for part in PARTS:
                if (ROOT / part).is_dir():
                    shutil.copytree(ROOT / part, new / part, ignore=shutil.ignore_patterns("__pycache__"))
                else:
                    shutil.copy2(ROOT / part, new / part)
            if there:
                destination.rename(old)
            try:
                new.rename(destination)
            except OSError:
                if there:
                    old.rename(destination)
                raise
    except OSError as error:
        raise UserError(f"{destination}: {error.strerror or error}; expected a folder that can be written") from error


def _is_the_skill(folder: Path) -> bool:
    """Whether there is a copy of this skill, of whatever version."""
    try:
        return f"\nname: {NAME}\n" in (folder / "SKILL.md").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return False
