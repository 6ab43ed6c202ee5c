"""Write a training script that shards with FSDP2 and checkpoints with DCP.

One self-contained file that needs torch and NumPy alone: a byte-level GPT for any text, the same on CPUs and GPUs.
Run again with the same command line it resumes, and what it computes then equals an uninterrupted run bit for bit.
"""

from __future__ import annotations

import argparse
import stat
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ..validate import header
from ..validate.errors import UserError
from ..validate.files import replace_file, umask
from .launchers import LAUNCHERS, launch_name, launch_written_by, render_launcher
from .options import OPTIONS, Answers, answer
from .render import render, version

EXAMPLES = (
    "fsdp2 generate --out train.py",
    "fsdp2 generate --out - --mesh dp_shard=-1 --async-mode disabled",
    "fsdp2 generate --out train.py --launcher slurm",
    "fsdp2 generate --check train.py",
    "fsdp2 generate --list",
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `generate`: one of four things to do, and the options."""
    todo = parser.add_mutually_exclusive_group(required=True)
    todo.add_argument("--out", metavar="FILE", help="write the script here; - writes it to stdout")
    todo.add_argument("--list", action="store_true", help="print every option with its values and default")
    todo.add_argument("--update", metavar="FILE", help="generate a script anew from the answers that it carries")
    todo.add_argument("--check", metavar="FILE", help="exit with 1 if a script is not what its answers generate now")
    parser.add_argument("--force", action="store_true", help="replace a file that exists, or (--update) was edited")
    for option in OPTIONS:
        values = " or ".join(option.values)
        parser.add_argument(
            option.flag, metavar="VALUE", help=f"{option.help}: {values} (default: {option.default})"
        )  # checked by options.answer, which gives the reason


def run(arguments: argparse.Namespace) -> int:
    """Write, list, update or check, and return the exit code."""
    chosen = {option.name: value for option in OPTIONS if (value := getattr(arguments, option.name)) is not None}
    if chosen and arguments.out is None:
        raise UserError("options go with --out; a generated script carries its answers itself")
    if arguments.list:
        print("\n".join(_listed()))
    elif arguments.check is not None:
        return _check(Path(arguments.check))
    elif arguments.update is not None:
        _update(Path(arguments.update), force=arguments.force)
    else:
        _write_new(arguments.out, answer(chosen), force=arguments.force)
    return 0


def _listed() -> list[str]:
    lines = []
    for option in OPTIONS:
        lines.append(f"{option.flag}  {option.help}")
        lines += [f"    {value}{'  (default)' if value == option.default else ''}" for value in option.values]
    return lines


@dataclass(frozen=True)
class _File:
    """A file that a set of answers gives. `written_by` tells the version that wrote a text, None if it was edited."""

    path: Path
    text: str
    written_by: Callable[[str], str | None]
    executable: bool = False

    def there(self) -> str | None:
        """The text that is there now, None where there is no file."""
        return _read(self.path) if self.path.exists() else None


def _files(path: Path, answers: Answers) -> list[_File]:
    """The script, and what starts it where that was asked for."""
    files = [_File(path, render(answers), _script_written_by)]
    if launcher := LAUNCHERS.get(answers["launcher"]):
        launch = path.with_name(launch_name(answers["launcher"], path.name))
        files.append(_File(launch, render_launcher(answers, path.name), launch_written_by, launcher.executable))
    return files


def _script_written_by(text: str) -> str | None:
    carried = header.parse(text)
    return carried.version if carried is not None and carried.digest == header.digest(text) else None


def _write_new(out: str, answers: Answers, *, force: bool) -> None:
    if out == "-":
        if answers["launcher"] != "none":
            raise UserError("--launcher writes a second file, which names the script; expected --out FILE, not --out -")
        sys.stdout.write(render(answers))
        return
    if Path(out).stem in {*sys.stdlib_module_names, "torch", "numpy"}:  # its folder is where its imports look first
        raise UserError(f"a script named {Path(out).name} is imported instead of the module; expected another name")
    files = _files(Path(out), answers)
    for file in files:
        if file.path.exists() and not force:
            raise UserError(f"{file.path} exists; expected the name of a new file (--force replaces it)")
    for file in files:
        _write(file)
        print(f"{file.path}: written, {len(file.text.splitlines())} lines; its head says how to run it")


def _update(path: Path, *, force: bool) -> None:
    files = _files(path, _answers(path))
    for file in files:
        old = file.there()
        if old is not None and file.written_by(old) is None and not force:
            raise UserError(f"{file.path} was edited since it was generated; expected no edits (--force drops them)")
    for file in files:
        old = file.there()
        if old == file.text:
            print(f"{file.path}: up to date (version {version()})")
            continue
        _write(file)
        was = None if old is None else file.written_by(old)
        print(f"{file.path}: {f'updated from version {was}' if was else 'written'} (version {version()})")


def _check(path: Path) -> int:
    drifted = 0
    for file in _files(path, _answers(path)):
        old = file.there()
        if old == file.text:
            print(f"{file.path}: up to date (version {version()})")
            continue
        drifted = 1
        if old is None:
            why = "is missing"
        elif was := file.written_by(old):
            why = f"has drifted: it was generated by version {was}"
        else:
            why = "has drifted: it was edited since it was generated"
        print(f"{file.path}: {why}; `fsdp2 generate --update {path}` generates it anew (version {version()})")
    return drifted


def _answers(path: Path) -> Answers:
    """The answers that a script carries."""
    text = _read(path)
    try:
        carried = header.parse(text)
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    if carried is None:
        raise UserError(f"{path} has no `# /// fsdp2` block; expected a script that `fsdp2 generate` wrote")
    return answer(carried.answers)


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise UserError(
            f"{path}: {reason}; expected a script, or what starts it, as `fsdp2 generate` wrote it"
        ) from error


def _write(file: _File) -> None:
    """Write the whole file or nothing. Permissions of a file that exists stay."""
    target = file.path.resolve()  # through a symbolic link, not over it
    try:
        new = (0o777 if file.executable else 0o666) & ~umask()
        mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else new
        replace_file(target, file.text.encode(), mode)
    except OSError as error:
        raise UserError(
            f"{file.path}: cannot be written: {error.strerror}; expected a file in a folder of yours"
        ) from error
