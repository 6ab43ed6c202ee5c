"""Generated scripts, run by torchrun on CPU ranks: stop and go equals never stopping, in each way to stop."""

from __future__ import annotations

import itertools
import os
import signal
from pathlib import Path

import pytest

from .training import Training, kill_all, rank_ids

pytestmark = pytest.mark.slow


def again(straight: Training, folder: Path, **options: str) -> Training:
    return Training(straight.script, folder / "again", options=options)


def test_an_uninterrupted_run_learns_and_saves_at_the_interval_and_keeps_the_newest(straight: Training) -> None:
    records = straight.records()
    assert [r["step"] for r in records] == list(range(1, 13))
    assert records[-1]["loss"] < records[0]["loss"] - 0.1
    assert straight.saved() == ["step-4", "step-8", "step-12"]


def test_the_same_command_twice_computes_the_same_bits(straight: Training, tmp_path: Path) -> None:
    assert again(straight, tmp_path).finish() == straight.records()


@pytest.mark.parametrize(
    ("straight", "step"),
    [("disabled", 5), ("async", 3), ("async", 5), ("async_with_pinned_mem", 9)],
    indirect=["straight"],
)
def test_a_run_that_is_killed_ends_as_if_it_had_not_been(straight: Training, tmp_path: Path, step: int) -> None:
    """SIGKILL to torchrun and both ranks, after steps before and after a checkpoint; the log holds no step twice."""
    training = again(straight, tmp_path)
    with training.started() as process:
        training.wait_for_step(step, process)
        kill_all(process)
    assert training.finish() == straight.records()


@pytest.mark.parametrize(
    ("straight", "signum"), [("disabled", signal.SIGUSR1), ("async", signal.SIGTERM)], indirect=["straight"]
)
def test_a_signal_to_one_rank_saves_on_all_and_exits_with_0(
    straight: Training, tmp_path: Path, signum: signal.Signals
) -> None:
    training = again(straight, tmp_path, **{"--steps": "400", "--checkpoint-interval": "1000"})
    with training.started() as process:
        training.wait_for_step(3, process)
        os.kill(rank_ids(process)[1], signum)
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, out + err
    last = int(training.records()[-1]["step"])
    assert 3 <= last < 400
    assert training.saved() == [f"step-{last}"]


@pytest.mark.parametrize("straight", ["async"], indirect=True)
def test_a_signal_to_torchrun_saves_and_the_run_goes_on_where_it_was(straight: Training, tmp_path: Path) -> None:
    training = again(straight, tmp_path, **{"--checkpoint-interval": "1000"})
    with training.started() as process:
        training.wait_for_step(3, process)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)  # torchrun itself reports the signal; its ranks have ended well
    last = int(training.records()[-1]["step"])
    assert training.saved() == [f"step-{last}"]
    assert training.finish() == straight.records()


@pytest.mark.parametrize(("straight", "before", "after"), [("disabled", 2, 1), ("async", 1, 2)], indirect=["straight"])
def test_another_number_of_ranks_continues_the_same_run_up_to_rounding(
    straight: Training, tmp_path: Path, before: int, after: int
) -> None:
    """Without dropout, whose masks depend on the ranks; the steps before the checkpoint stay those of the first run."""
    no_dropout = {"--dropout": "0"}
    reference = Training(straight.script, tmp_path / "reference", ranks=before, options=no_dropout)
    expected = reference.finish()
    training = Training(straight.script, tmp_path / "moved", ranks=before, options=no_dropout)
    with training.started() as process:
        training.wait_for_step(9, process)
        kill_all(process)
    training.ranks = after
    records = training.finish()
    assert records[:4] == expected[:4]
    for one, other in itertools.zip_longest(records, expected):
        assert one == pytest.approx(other, rel=1e-4)


@pytest.mark.parametrize("straight", ["async"], indirect=True)
def test_a_half_written_checkpoint_is_passed_over_and_written_anew(straight: Training, tmp_path: Path) -> None:
    """The newest lost the end of one file, another its metadata; the run resumes from the one before them."""
    training = again(straight, tmp_path, **{"--keep-latest": "9", "--checkpoint-interval": "2"})
    expected = training.finish()
    assert training.saved() == [f"step-{n}" for n in (2, 4, 6, 8, 10, 12)]
    cut = max(training.checkpoints.glob("step-12/*.distcp"), key=lambda path: path.stat().st_size)
    os.truncate(cut, cut.stat().st_size - 1)
    (training.checkpoints / "step-10" / ".metadata").write_bytes(b"half")
    (training.checkpoints / "step-8" / ".metadata").unlink()
    process = training.run()
    assert process.returncode == 0, process.stderr
    assert "from step 6 to 12" in process.stdout
    for step, lacking in ((12, "cut short"), (10, "UnpicklingError"), (8, ".metadata")):
        (line,) = (line for line in process.stderr.splitlines() if f"step-{step} is passed over" in line)
        assert lacking in line
    assert training.records() == expected
    assert training.saved() == [f"step-{n}" for n in (2, 4, 6, 8, 10, 12)]


@pytest.mark.parametrize("straight", ["disabled"], indirect=True)
def test_half_written_checkpoints_go_once_a_newer_one_is_whole(straight: Training, tmp_path: Path) -> None:
    training = again(straight, tmp_path, **{"--keep-latest": "2", "--checkpoint-interval": "3"})
    (training.checkpoints / "step-5").mkdir(parents=True)
    (training.checkpoints / "step-5" / "__0_0.distcp").write_bytes(b"half")
    training.finish()
    assert training.saved() == ["step-9", "step-12"]


@pytest.mark.parametrize("straight", ["disabled"], indirect=True)
def test_a_finished_run_started_again_does_nothing(straight: Training) -> None:
    before = straight.log.read_bytes()
    process = straight.run()
    assert process.returncode == 0
    assert "from step 12 to 12" in process.stdout
    assert straight.log.read_bytes() == before
