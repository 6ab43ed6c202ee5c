"""The tasks of evals.json, and the folder that each starts from."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

EVALS = Path(__file__).resolve().parent
SKILL = EVALS.parent
DEADLINE = 120.0  # seconds for a run of a script; those of the tasks take some ten on a busy machine of two cores

TELLING = (  # of what a script prints as it ends: a wrong argument, its own exception, how torchrun saw a rank end
    r"(\w+\.py: error: .*)",
    r"^(?:\[rank\d+\]: )?(?!torch\.distributed\.elastic)([\w.]+(?:Error|Exception): .*)",
    r"(exitcode\s*: -?\d+)",
)


class UserError(Exception):
    """What the user asked for cannot be done; the message is one line that says what was expected."""


@dataclass(frozen=True)
class Task:
    """One entry of evals.json: `run` and `damage` are done to the folder once its files are there."""

    name: str
    prompt: str
    files: tuple[Path, ...]
    checks: tuple[dict[str, Any], ...]
    edits: Path | None
    run: dict[str, Any] | None
    damage: dict[str, str]

    def prepare(self, folder: Path) -> None:
        """Write the starting folder, which must not be there yet."""
        folder.mkdir(parents=True)
        for file in self.files:
            shutil.copy(file, folder / file.name)
        if self.edits is not None:
            apply(self.edits, folder)
        if self.run is not None:
            done = launch(folder, self.run, folder)
            if done.code != 0:
                raise UserError(f"{self.name}: the run that prepares it exited with {done.code}: {done.last_line}")
        for name, how in self.damage.items():
            path = folder / name
            if how == "remove":
                path.unlink()
            else:
                os.truncate(path, path.stat().st_size // 2)
        (folder / "PROMPT.md").write_text(self.prompt + "\n")


def tasks(only: list[str]) -> list[Task]:
    """All tasks, or those of these names."""
    listed = json.loads((EVALS / "evals.json").read_text())["evals"]
    every = [
        Task(
            name=entry["name"],
            prompt=entry["prompt"],
            files=tuple(SKILL / file for file in entry["files"]),
            checks=tuple(entry["checks"]),
            edits=SKILL / entry["edits"] if "edits" in entry else None,
            run=entry.get("run"),
            damage=entry.get("damage", {}),
        )
        for entry in listed
    ]
    names = {task.name for task in every}
    if unknown := sorted(set(only) - names):
        raise UserError(f"--only {unknown[0]}: no such task; expected some of {', '.join(sorted(names))}")
    return [task for task in every if not only or task.name in only]


def apply(edits: Path, folder: Path) -> None:
    """Put the lines that begin with ` ` or `+` in the place of those with ` ` or `-`, which must be there once."""
    for hunk in edits.read_text().split("@@ ")[1:]:
        name, _, lines = hunk.partition("\n")
        every = [f" {line}" if line == "\n" else line for line in lines.splitlines(keepends=True)]
        old, new = ("".join(line[1:] for line in every if line[0] in (" ", sign)) for sign in "-+")
        text = (folder / name).read_text()
        if text.count(old) != 1:
            raise UserError(f"{edits.name}: {name} does not have once what this replaces: {old.strip()[:60]}")
        (folder / name).write_text(text.replace(old, new))


@dataclass(frozen=True)
class Done:
    """How a script ended; `code` is None where it was killed at the deadline."""

    code: int | None
    output: str

    @property
    def last_line(self) -> str:
        """What it said of an error, or else its last line."""
        for pattern in TELLING:
            if found := re.search(pattern, self.output, re.MULTILINE):
                return found[1][:200]
        return (self.output.strip().splitlines() or ["nothing was printed"])[-1].strip()[:200]


def launch(folder: Path, what: dict[str, Any], scratch: Path, sigterm_after: str | None = None) -> Done:
    """Run `script` with `args` in a folder, by torchrun where it names `nproc`; `{scratch}` in them is that folder.

    Once `sigterm_after` is printed, every rank gets SIGTERM, as from a scheduler that takes the machine away.
    """
    args = [word.replace("{scratch}", str(scratch)) for word in what.get("args", [])]
    command = [sys.executable]
    if "nproc" in what:
        command += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={what['nproc']}", "--"]
    log = scratch / f"output-{len(list(scratch.glob('output-*')))}"
    environment = {"OMP_NUM_THREADS": "1", **os.environ}
    with log.open("w") as output:
        process = subprocess.Popen(
            [*command, what["script"], *args], cwd=folder, env=environment, stdout=output, stderr=output
        )
    try:
        code = _wait(process, log, sigterm_after)
    finally:
        for pid in [*descendants(process.pid), process.pid] if process.poll() is None else []:
            _send(pid, signal.SIGKILL)
        process.wait()
    said = log.read_text(errors="replace")
    log.unlink()
    return Done(0 if code == 1 and _aborted_at_its_end(said) else code, said)


def _aborted_at_its_end(output: str) -> bool:
    """Whether nothing failed but the exit of a rank that was done: a thread of torch's that ran on aborts it.

    Seen in one of some twenty runs on two busy cores with torch 2.13, of scripts that end with a barrier and
    `destroy_process_group`. The rank says this and no more, and torchrun then ends the others.
    """
    codes = {int(code) for code in re.findall(r"^ +exitcode +: (-?\d+)", output, re.MULTILINE)}
    return "terminate called without an active exception" in output and codes <= {-signal.SIGABRT, -signal.SIGTERM}


def _wait(process: subprocess.Popen[bytes], log: Path, sigterm_after: str | None) -> int | None:
    """The exit code; None at the deadline."""
    for _ in range(int(DEADLINE * 20)):
        if sigterm_after is not None and sigterm_after in log.read_text(errors="replace"):
            for pid in descendants(process.pid):
                _send(pid, signal.SIGTERM)
            sigterm_after = None
        try:
            return process.wait(0.05)
        except subprocess.TimeoutExpired:
            continue
    return None


def _send(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return  # it ended by itself


def descendants(pid: int) -> list[int]:
    """A process's children, and theirs: torchrun gives each rank a session of its own."""
    table = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], check=True, capture_output=True, text=True).stdout
    pairs = [tuple(map(int, line.split())) for line in table.splitlines()]
    found, todo = list[int](), [pid]
    while todo:
        parent = todo.pop()
        children = [child for child, its_parent in pairs if its_parent == parent]
        found += children
        todo += children
    return found
