"""Proofs given side by side: where that is done, what they share, and how all of it is broken off."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pytorch_fsdp2_dcp.templates.options import answer
from pytorch_fsdp2_dcp.templates.render import render
from pytorch_fsdp2_dcp.validate import header
from pytorch_fsdp2_dcp.validate.launch import launcher
from pytorch_fsdp2_dcp.validate.proofs.base import DoesNotApply, Proof, Verdict
from pytorch_fsdp2_dcp.validate.proofs.bench import Bench, Subject
from pytorch_fsdp2_dcp.validate.proofs.lanes import give
from pytorch_fsdp2_dcp.validate.proofs.once import once

from ..commands import SKILL
from ..runs import alive

TEXT = Path(__file__).resolve().parents[1] / "fixtures" / "text.md"
MEETING = 60  # seconds that the first waits for the second


class Meets(Proof):
    """Passes if another one is given while it is."""

    claim = "another proof is given at the same time"

    def __init__(self, name: str, meeting: threading.Barrier) -> None:
        self.name = name  # type: ignore[misc]
        self.meeting = meeting

    def prove(self, bench: Bench) -> Verdict:  # noqa: ARG002 - as proofs have it
        self.meeting.wait(MEETING)
        return Verdict(name=self.name, status="pass", reason="met")


class Fails(Meets):
    """Fails itself, once another one is given."""

    def prove(self, bench: Bench) -> Verdict:
        super().prove(bench)
        raise ZeroDivisionError


class Skips(Meets):
    """Says nothing of the script."""

    def prove(self, bench: Bench) -> Verdict:
        super().prove(bench)
        raise DoesNotApply("it says nothing here")


def generated(folder: Path, **run: Any) -> Bench:
    """Of a generated script that was run straight on: quickly, on CPUs, to its end."""
    script = folder / "train.py"
    script.write_text(render(answer({})))
    subject = Subject(
        script=script, args=(), nproc=2, cwd=folder, checkpoint_arg="--checkpoint-dir", stop_after=None, timeout=80,
        header=header.parse(script.read_text()),
    )  # fmt: skip
    bench = Bench(subject, launcher("warm"), folder)
    mesh = SimpleNamespace(device_type=run.get("device", "cpu"))
    vars(bench)["_straight"] = SimpleNamespace(
        check=lambda: None,
        completed=run.get("completed", True),
        run=SimpleNamespace(seconds=run.get("seconds", 3.0)),
        traces=[SimpleNamespace(of=lambda *_: [mesh])],
    )
    return bench


def test_proofs_of_a_generated_script_are_given_two_at_a_time_and_told_in_order(tmp_path: Path) -> None:
    meeting = threading.Barrier(2)
    proofs = [Meets("a", meeting), Skips("b", meeting), Meets("c", meeting), Meets("d", meeting)]
    given = [verdict for verdict, _ in give(proofs, generated(tmp_path))]
    assert [verdict.name + verdict.status for verdict in given] == ["apass", "bskip", "cpass", "dpass"]
    assert given[1].applies is False


def test_an_error_of_one_lane_is_raised_when_the_other_has_ended(tmp_path: Path) -> None:
    meeting = threading.Barrier(2)
    with pytest.raises(ZeroDivisionError):
        give([Fails("a", meeting), Meets("b", meeting), Meets("c", meeting)], generated(tmp_path))
    assert not any("ThreadPool" in thread.name for thread in threading.enumerate())


def test_the_longest_chain_of_runs_is_begun_first(tmp_path: Path) -> None:
    begun: list[str] = []

    class Begins(Proof):
        claim = "it is begun"

        def __init__(self, name: str, chained: bool) -> None:
            self.name, self.chained = name, chained  # type: ignore[misc]

        def prove(self, bench: Bench) -> Verdict:  # noqa: ARG002 - as proofs have it
            begun.append(self.name)
            return Verdict(name=self.name, status="pass", reason="begun")

    give([Begins("a", False), Begins("b", False), Begins("c", True)], generated(tmp_path))
    assert begun[0] == "c"


@pytest.mark.parametrize(
    "run", [{"device": "cuda"}, {"completed": False}, {"seconds": 30.0}], ids=lambda run: str(next(iter(run)))
)
def test_one_at_a_time_where_two_runs_could_meet(run: dict[str, Any], tmp_path: Path) -> None:
    """In the memory of a GPU, in whatever broke the run off, or at the deadline."""
    assert not generated(tmp_path, **run).side_by_side


def test_one_at_a_time_for_what_is_not_as_it_was_generated(tmp_path: Path) -> None:
    """It may use a fixed port, or a file of a fixed name."""
    bench = generated(tmp_path)
    assert bench.side_by_side
    script = bench.subject.script
    script.write_text(script.read_text().replace("def main()", "def begin()"))
    assert not bench.side_by_side
    bench.subject = replace(bench.subject, header=None)
    assert not bench.side_by_side
    bench = generated(tmp_path)
    bench.launcher = launcher("torchrun")
    assert not bench.side_by_side


def test_what_proofs_share_is_computed_once_and_anew_after_an_error() -> None:
    computed: list[int] = []
    errors = [ValueError("the first time")]

    class Shared:
        @once
        def value(self) -> object:
            """What it is."""
            computed.append(threading.get_ident())
            time.sleep(0.05)  # in which the others ask, too
            if errors:
                raise errors.pop()
            return object()

    shared = Shared()
    with pytest.raises(ValueError, match="the first time"):
        _ = shared.value
    with ThreadPoolExecutor(8) as pool:
        values = {*pool.map(lambda _: shared.value, range(8))}
    assert (len(values), len(computed)) == (1, 2)
    assert Shared().value not in values
    assert Shared.value.__doc__ == "What it is."


@pytest.mark.slow
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_while_two_runs_are_under_way_leaves_nothing_behind(
    signum: signal.Signals, tmp_path: Path
) -> None:
    folder, script = tmp_path / "tmp", tmp_path / "train.py"
    folder.mkdir()
    script.write_text(render(answer({})))
    process = subprocess.Popen(
        [sys.executable, str(SKILL), "validate", "train.py", "--", "--data", str(TEXT)],
        env={**os.environ, "TMPDIR": str(folder)},
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    while not [*folder.glob("fsdp2-*/**/run-3/ranks/0.begun")]:  # the second beside the first
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    process.send_signal(signum)
    time.sleep(0.05)
    process.send_signal(signum)  # an impatient user
    out, _ = process.communicate()
    assert process.returncode in (128 + signal.SIGINT, 128 + signal.SIGTERM, -signal.SIGINT), out
    assert [path.name for path in folder.iterdir() if not path.name.startswith("torchinductor")] == []
    assert alive(str(tmp_path)) == []
