"""Runs a generated script as a user does, by torchrun, and ends it in the ways in which it may end."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pytorch_fsdp2_dcp.templates.options import answer
from pytorch_fsdp2_dcp.templates.render import render
from pytorch_fsdp2_dcp.validate.launch import launcher
from pytorch_fsdp2_dcp.validate.launch.job import Job, Probe, Run

TEXT = Path(__file__).resolve().parents[1] / "fixtures" / "text.md"  # it never changes, and so neither does a loss
ANY_MODEL = {
    **{"--data": str(TEXT), "--steps": "12", "--checkpoint-interval": "4", "--global-batch": "8", "--micro-batch": "2"},
    "--seq-len": "32",
}
SMALL = {**ANY_MODEL, "--layers": "2", "--width": "32"}
MODES = ("disabled", "async", "async_with_pinned_mem")
DEADLINE = 120  # seconds; a run takes some five


def write_script(folder: Path, **chosen: str) -> Path:
    """A script generated from these options."""
    script = folder / "train.py"
    script.write_text(render(answer(chosen)))
    return script


def warm_run(script: Path, ranks: int, args: Iterable[str], stop_after: int | None = None) -> Run:
    """Run a script by the warm launcher, in its folder; scratch files go below it."""
    scratch = script.with_name("scratch")
    scratch.mkdir()
    return launcher("warm").run(
        Job(
            script=script,
            args=tuple(args),
            nproc=ranks,
            cwd=script.parent,
            scratch=scratch,
            deadline=DEADLINE,
            probe=Probe(stop_after=stop_after),
        )
    )


@dataclass
class Training:
    """One command line of one script, with a log and a checkpoint folder of its own; run it as often as needed."""

    script: Path
    folder: Path
    ranks: int = 2
    options: dict[str, str] = field(default_factory=dict)
    small: dict[str, str] = field(default_factory=lambda: SMALL)

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    @property
    def log(self) -> Path:
        return self.folder / "log.jsonl"

    def arguments(self) -> list[str]:
        """What the script gets."""
        options = {**self.small, "--checkpoint-dir": str(self.checkpoints), "--log": str(self.log), **self.options}
        return [word for pair in options.items() for word in pair]

    def command(self) -> list[str]:
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(self.ranks)]
        return [*launcher, "--", str(self.script), *self.arguments()]

    @contextlib.contextmanager
    def started(self) -> Iterator[subprocess.Popen[str]]:
        """The running torchrun; whatever of it is left in the end is killed."""
        self.folder.mkdir(exist_ok=True)
        process = subprocess.Popen(
            self.command(),
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            yield process
        finally:
            kill_all(process)
            process.communicate()

    def run(self) -> subprocess.CompletedProcess[str]:
        """Run to the end, whatever that is."""
        with self.started() as process:
            out, err = process.communicate(timeout=DEADLINE)
            return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def finish(self) -> list[dict[str, float]]:
        """Run to a good end; the log, less what depends on the clock."""
        process = self.run()
        assert process.returncode == 0, process.stdout + process.stderr
        return self.records()

    def records(self) -> list[dict[str, float]]:
        return records_of(self.log)

    def saved(self) -> list[str]:
        return saved_in(self.checkpoints)

    def wait_for_step(self, step: int, process: subprocess.Popen[str], *, deadline: float = DEADLINE) -> None:
        """Return once this step is in the log."""
        end = time.monotonic() + deadline
        while not any(record["step"] >= step for record in self.records()):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < end, f"{self.records()}\n{printed_by(process)}"
            time.sleep(0.01)


def printed_by(process: subprocess.Popen[str]) -> str:
    """What is in the pipes of a process that runs still, whose ends others may hold, too."""
    text = ""
    for pipe in (process.stdout, process.stderr):
        if pipe is not None and select.select([pipe], [], [], 0)[0]:
            text += os.read(pipe.fileno(), 1 << 20).decode(errors="replace")
    return text


def records_of(log: Path) -> list[dict[str, float]]:
    """The complete lines of a log, less what depends on the clock."""
    lines = log.read_text().split("\n")[:-1] if log.exists() else []
    return [{k: v for k, v in json.loads(line).items() if k != "tokens_per_s"} for line in lines]


def saved_in(checkpoints: Path) -> list[str]:
    """The names of the checkpoint folders, by step."""
    return sorted((p.name for p in checkpoints.glob("step-*")), key=lambda name: int(name[5:]))


def rank_ids(process: subprocess.Popen[str]) -> list[int]:
    """The ids of the rank processes, rank 0 first."""
    return sorted(children(process.pid))


def kill_all(process: subprocess.Popen[str]) -> None:
    """SIGKILL to torchrun and every rank."""
    if process.poll() is None:
        for pid in [process.pid, *children(process.pid)]:
            with contextlib.suppress(ProcessLookupError):  # it has just ended by itself
                os.kill(pid, signal.SIGKILL)


def children(pid: int) -> list[int]:
    """The ids of the processes that a process has started; none once it has ended."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread that has just ended
            found += map(int, task.read_text().split())
    return found
