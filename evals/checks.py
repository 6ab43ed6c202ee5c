"""What a task's checks ask of the folder that an agent left; each is answered by running something.

lint    no error or warning in `script`; and the items `done` of `workflow` in the checklist are done
prove   `proofs` of `validate` pass
losses  `after` prints, in the folder, the losses that `before` printed where the task started; there after its `edits`,
        which let a script that needs an accelerator (FSDP1) compute the same without one
equal   `file` holds the tensors of `source` in the starting folder, of `keys` renamed by `rename`
runs    a script exits with 0 and `prints` is in what it says; with `sigterm_after`, every rank gets SIGTERM after those
        words, and the same command line, run again, goes on with the step after the last, and ends so after it
answer  `file` is JSON and says what is `expected`
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks import SKILL, Done, Task, apply, launch

LOSS = re.compile(r"\bloss[ =:]+(\d+\.\d+(?:e-?\d+)?|nan|inf)")
STEP = re.compile(r"\bstep[ =:]+(\d+)")


@dataclass(frozen=True)
class Ground:
    """A copy of what the agent left, an empty folder, and where the task started (made when first needed)."""

    task: Task
    left: Path
    scratch: Path

    @property
    def start(self) -> Path:
        """The starting folder, made anew, so that nothing an agent did can change it."""
        folder = self.scratch.parent / "start"
        if not folder.exists():
            self.task.prepare(folder)
        return folder


class Failed(Exception):
    """A check does not hold, and why."""


def check(what: dict[str, Any], ground: Ground) -> str | None:
    """Why a check does not hold; None where it does."""
    ground.scratch.mkdir(parents=True)
    try:
        for name in [what[key] for key in ("script", "file") if key in what]:
            if not (ground.left / name).exists():
                return f"there is no {name}"
        KINDS[what["kind"]](what, ground)
    except Failed as failed:
        return str(failed)
    return None


def title(what: dict[str, Any]) -> str:
    """A check in a few words."""
    kind = what["kind"]
    if kind == "prove":
        return f"prove {','.join(what['proofs'])} on {what['nproc']}"
    if kind == "losses":
        return f"losses of {what['after']['script']}"
    subject = what["script"] if "script" in what else what["file"]
    return f"{kind} {subject}" + (" until SIGTERM" if "sigterm_after" in what else "")


def _lint(what: dict[str, Any], ground: Ground) -> None:
    arguments = ["lint", what["script"], "--min-severity", "warn", "--format", "json"]
    if "workflow" in what:
        arguments += ["--checklist", what["workflow"]]
    code, document, said = _fsdp2(arguments, ground.left)
    if document is None or code == 2:
        raise Failed(said)
    codes = sorted({finding["code"] for finding in document["findings"]})
    if codes:
        raise Failed(f"finds {', '.join(codes)}")
    status = {item["item"]: item["status"] for item in document.get("checklist", [])}
    for item in what.get("done", []):
        if status.get(item) != "done":
            raise Failed(f"item {item} of workflow {what['workflow']} is {status.get(item)}")


def _prove(what: dict[str, Any], ground: Ground) -> None:
    arguments = ["validate", what["script"], "--prove", ",".join(what["proofs"]), "--nproc", str(what["nproc"])]
    if "checkpoint_arg" in what:
        arguments += ["--checkpoint-arg", what["checkpoint_arg"]]
    _, document, said = _fsdp2([*arguments, "--format", "json", "--", *what.get("args", [])], ground.left)
    if document is None:
        raise Failed(said)
    for proof in document["proofs"]:
        if proof["status"] != "pass":
            codes = sorted({finding["code"] for finding in proof["findings"]})
            found = f" ({', '.join(codes)})" if codes else ""
            raise Failed(f"{proof['name']}: {proof['status']}{found}: {proof['reason']}"[:300])


def _losses(what: dict[str, Any], ground: Ground) -> None:
    start = ground.start
    if (edits := what["before"].get("edits")) is not None:
        start = ground.scratch / "stand-in"
        shutil.copytree(ground.start, start)
        apply(SKILL / edits, start)
    before, after = (
        _told(launch(folder, what[when], ground.scratch), f"{what[when]['script']} {when}")
        for when, folder in (("before", start), ("after", ground.left))
    )
    if not before:
        raise Failed("the starting script prints no loss")
    if len(before) != len(after):
        raise Failed(f"{len(after)} losses are printed, {len(before)} before")
    for number, (old, new) in enumerate(zip(before, after, strict=True), 1):
        if not abs(old - new) <= what["tolerance"]:  # a NaN compares as different
            raise Failed(f"loss {number} of {len(before)} is {new}, and was {old}")


def _told(done: Done, which: str) -> list[float]:
    _ended_well(done, which)
    return [float(loss) for loss in LOSS.findall(done.output)]


def _equal(what: dict[str, Any], ground: Ground) -> None:
    ours, theirs = ground.scratch / "expected", ground.scratch / "found"
    renamed = [f"--{name}={what[name]}" for name in ("keys", "rename")]
    for source, target, more in (
        (ground.start / what["source"], ours, renamed),
        (ground.left / what["file"], theirs, []),
    ):
        code, document, said = _fsdp2(["convert", str(source), str(target), *more, "--format", "json"], ground.left)
        if document is None or code != 0:
            raise Failed(said)
    code, document, said = _fsdp2(["inspect", str(theirs), "--against", str(ours), "--format", "json"], ground.left)
    if document is None:
        raise Failed(said)
    if code != 0:
        kinds = {name: len(found) for name, found in document["against"].items() if isinstance(found, list) and found}
        raise Failed("its tensors are others: " + ", ".join(f"{count} {name}" for name, count in kinds.items()))


def _runs(what: dict[str, Any], ground: Ground) -> None:
    first = launch(ground.left, what, ground.scratch, what.get("sigterm_after"))
    _ended_well(first, what["script"])
    if "prints" in what and what["prints"] not in first.output:
        raise Failed(f"does not print {what['prints']!r}")
    if "sigterm_after" in what:
        second = launch(ground.left, what, ground.scratch, " loss ")  # its first step tells enough
        _ended_well(second, f"{what['script']} again")
        steps, again = ([int(step) for step in STEP.findall(done.output)] for done in (first, second))
        if not steps:
            raise Failed(f"{what['script']} prints no step")
        if not again or again[0] != steps[-1] + 1:
            raise Failed(f"ended after step {steps[-1]}, and goes on with step {again[0] if again else 'none'}")


def _ended_well(done: Done, which: str) -> None:
    if done.code is None:
        raise Failed(f"{which} does not end")
    if done.code != 0:
        raise Failed(f"{which} exits with {done.code}: {done.last_line}")


def _answer(what: dict[str, Any], ground: Ground) -> None:
    try:
        found = json.loads((ground.left / what["file"]).read_text())
    except ValueError as error:
        raise Failed(f"{what['file']} is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise Failed(f"{what['file']} is no JSON object")
    for key, expected in what["expected"].items():
        if found.get(key) != expected:
            raise Failed(f"{key} is {json.dumps(found.get(key))}"[:300])


def _fsdp2(arguments: list[str], folder: Path) -> tuple[int, dict[str, Any] | None, str]:
    """The exit code of the skill's command, its document, and what it said where there is none."""
    command = [sys.executable, str(SKILL), *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    said = (done.stderr.strip().splitlines() or ["nothing was said"])[-1]
    return done.returncode, json.loads(done.stdout) if done.stdout else None, said[:300]


KINDS: dict[str, Callable[[dict[str, Any], Ground], None]] = {
    "lint": _lint,
    "prove": _prove,
    "losses": _losses,
    "equal": _equal,
    "runs": _runs,
    "answer": _answer,
}
