"""A run whose storage fails, or whose writers die: every rank ends with the reason, and what was whole stays whole."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from types import ModuleType

import pytest

torch = pytest.importorskip("torch")
from .faults import Fault, wait_for  # noqa: E402
from .loaded import joined, load_script, parse  # noqa: E402
from .training import (  # noqa: E402
    DEADLINE,
    SMALL,
    Training,
    children,
    kill_all,
    rank_ids,
    saved_in,
    warm_run,
    write_script,
)

GONE = 20  # seconds within which a process that should be gone has to be


class Limited(Training):
    """With a limit of the shell's `ulimit`."""

    limit = "-f 100"  # KiB a file; a rank writes four times as much in one file of a checkpoint

    def command(self) -> list[str]:
        return ["bash", "-c", f'ulimit {self.limit}; exec "$@"', "bash", *super().command()]


def from_step_4(straight: Training, folder: Path, kind: type[Training] = Training, **options: str) -> Training:
    """A run that has what the uninterrupted one had saved first."""
    training = kind(straight.script, folder / "again", options=options)
    shutil.copytree(straight.checkpoints / "step-4", training.checkpoints / "step-4")
    return training


def gone(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    try:
        return stat.read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def writers(ranks: list[int]) -> list[int]:
    """The processes that write checkpoints for these ranks."""
    return [child for rank in ranks for child in children(rank) if b"spawn_main" in command_line(child)]


def command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):  # it has just ended
        return b""


@pytest.mark.slow
def test_a_disk_that_takes_no_more_ends_every_rank_and_the_last_whole_checkpoint_serves(
    straight: Training, tmp_path: Path
) -> None:
    training = from_step_4(straight, tmp_path, Limited)
    process = training.run()
    assert process.returncode not in (0, -signal.SIGKILL)
    for rank in ("[rank0]", "[rank1]"):
        assert any(line.startswith(rank) and "File too large" in line for line in process.stderr.splitlines())
    assert "step-4" in training.saved()
    again = Training(straight.script, training.folder)
    assert again.finish()[-8:] == straight.records()[-8:]


@pytest.mark.slow
def test_a_writer_that_fails_on_one_rank_ends_every_rank_with_its_error(
    straight: Training, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Fault(monkeypatch, tmp_path, step=8, rank=1, stall=0, error=True)
    training = from_step_4(straight, tmp_path)
    process = training.run()
    assert process.returncode not in (0, -signal.SIGKILL)
    lines = process.stderr.splitlines()
    told = [any(line.startswith(rank) and "No space left" in line for line in lines) for rank in ("[rank0]", "[rank1]")]
    assert any(told), process.stderr
    assert all(told) or "closing signal SIGTERM" in process.stderr  # torchrun ends the others once one has ended
    assert "CheckpointException" in process.stderr
    assert training.saved()[0] == "step-4"


@pytest.mark.slow
@pytest.mark.parametrize("straight", ["async_with_pinned_mem"], indirect=True)
def test_a_process_that_writes_ends_with_the_killed_rank_that_it_writes_for(
    straight: Training, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though it is stalled, it is gone, without a word to the metadata, before another run could write there."""
    fault = Fault(monkeypatch, tmp_path, step=8, rank=1, stall=600, error=False)
    training = from_step_4(straight, tmp_path)
    with training.started() as process:
        writer = fault.wait(DEADLINE)
        writing = {writer, *writers(rank_ids(process))}
        assert len(writing) == 2
        kill_all(process)
    wait_for(lambda: all(gone(pid) for pid in writing), GONE)
    assert not (training.checkpoints / "step-8" / ".metadata").exists()
    fault.end()
    assert training.finish()[-8:] == straight.records()[-8:]


@pytest.mark.slow
@pytest.mark.parametrize("straight", ["async_with_pinned_mem"], indirect=True)
def test_a_signal_to_all_processes_of_a_run_leaves_the_one_that_writes_to_finish(
    straight: Training, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As schedulers send it, and torchrun too: to the group of each rank, in which its writer is."""
    fault = Fault(monkeypatch, tmp_path, step=8, rank=1, stall=3, error=False)
    training = from_step_4(straight, tmp_path)
    with training.started() as process:
        fault.wait(DEADLINE)
        writing = writers(rank_ids(process))
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=DEADLINE)
    assert "[rank" not in err, out + err  # torchrun itself reports the signal; its ranks have ended well
    wait_for(lambda: all(gone(pid) for pid in writing), GONE)
    assert {"step-4", "step-8"} <= {*training.saved()}
    assert "passed over" not in training.run().stderr


@pytest.mark.slow
@pytest.mark.parametrize("straight", ["async_with_pinned_mem"], indirect=True)
def test_a_rank_that_ends_by_an_exception_does_not_wait_for_its_writer_forever(
    straight: Training, tmp_path: Path
) -> None:
    training = from_step_4(straight, tmp_path, **{"--steps": "100000", "--checkpoint-interval": "2"})
    with training.started() as process:
        training.wait_for_step(9, process)
        writing = writers(rank_ids(process))
        assert len(writing) == 2
        os.kill(rank_ids(process)[1], signal.SIGINT)
        _, err = process.communicate(timeout=DEADLINE)
        assert process.returncode not in (0, -signal.SIGKILL)
    assert "KeyboardInterrupt" in err
    assert "exitcode  : -9" not in err, "torchrun had to kill a rank"
    wait_for(lambda: all(gone(pid) for pid in writing), GONE)


@pytest.mark.slow
def test_a_loss_that_is_no_number_ends_every_rank_before_a_checkpoint_has_its_weights(tmp_path: Path) -> None:
    options = {**SMALL, "--checkpoint-interval": "1", "--lr": "1e30"}
    run = warm_run(write_script(tmp_path), 2, [word for pair in options.items() for word in pair])
    step = int(saved_in(tmp_path / "checkpoints")[-1][5:]) + 1
    for end in run.ends:
        assert (end.error or "").startswith(f"FloatingPointError: step {step}: "), end


@pytest.mark.slow
@pytest.mark.parametrize("straight", ["async_with_pinned_mem"], indirect=True)
def test_more_tensors_than_a_process_may_have_open_files_are_staged(straight: Training, tmp_path: Path) -> None:
    """Each is an open file while in shared memory: here some 900, where 400 are allowed until more are asked for."""
    training = Limited(straight.script, tmp_path / "many", options={"--layers": "50", "--steps": "4"})
    training.limit = "-Sn 400"
    training.finish()
    assert training.saved() == ["step-4"]


@pytest.fixture(scope="module")
def train(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    return load_script(tmp_path_factory.mktemp("script"))


@pytest.fixture
def checkpointer(train: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Of a world of one rank."""
    with joined():
        args = parse(train, monkeypatch, world=1, checkpoint_dir=str(tmp_path / "checkpoints"))
        cpu = torch.device("cpu")
        model = train.build_model_meta(args, train.build_mesh(args, cpu), cpu)
        state = train.TrainState(model, *train.build_optimizer(model, args))
        yield train.Checkpointer(args.checkpoint_dir, 3, "a run", state, train.RankState(cpu))


def save(checkpointer, step: int) -> Path:
    checkpointer.train.step = step
    checkpointer.save()
    checkpointer.wait()
    return checkpointer.folder / f"step-{step}"


@pytest.fixture
def reads(train: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the checkpoints whose metadata was read, in order."""
    names: list[str] = []
    read = train.read_whole
    monkeypatch.setattr(train, "read_whole", lambda path: (names.append(path.name), read(path))[1])
    return names


@pytest.mark.parametrize("old", [50, pytest.param(10_000, marks=pytest.mark.slow)])
def test_old_checkpoints_are_neither_read_by_a_resume_nor_by_a_save(checkpointer, reads: list[str], old: int) -> None:
    """The newest alone is read to resume; as many as are kept are read to keep them; older ones go unread."""
    newest = save(checkpointer, old + 1)
    for step in range(1, old + 1):
        folder = checkpointer.folder / f"step-{step}"
        folder.mkdir()
        for file in newest.iterdir():
            (folder / file.name).hardlink_to(file)
    reads.clear()
    checkpointer.resume(0)
    assert reads == [newest.name]
    reads.clear()
    checkpointer.train.step = old + 2
    checkpointer.save()
    checkpointer.wait()
    kept = [[f"step-{newest - back}" for back in range(3)] for newest in (old + 1, old + 2)]
    assert reads == [*kept[0], *kept[1]]
    assert {path.name for path in checkpointer.folder.iterdir()} == {*kept[1]}


def test_a_checkpoint_that_is_not_whole_is_named_with_what_it_lacks(
    checkpointer, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpointer.keep = 9
    paths = [save(checkpointer, step) for step in range(1, 6)]
    (data,) = paths[1].glob("*.distcp")
    os.truncate(data, data.stat().st_size - 1)
    next(paths[2].glob("*.distcp")).unlink()
    (paths[3] / ".metadata").write_bytes(b"half")
    (paths[4] / ".metadata").unlink()
    checkpointer.resume(0)
    assert checkpointer.train.step == 1
    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[0] for line in lines] == [str(path) for path in reversed(paths[1:])]
    for line, lacking in zip(lines, (".metadata", "UnpicklingError", "missing", "cut short"), strict=True):
        assert "not whole" in line and lacking in line


@pytest.mark.parametrize("error", [PermissionError, TimeoutError, ConnectionResetError])
def test_a_checkpoint_that_cannot_be_read_is_not_taken_for_half_written(
    train: ModuleType, checkpointer, monkeypatch: pytest.MonkeyPatch, error: type[OSError]
) -> None:
    """It is neither passed over nor removed: the run ends, with that error."""
    path = save(checkpointer, 1)

    def fail(_: object) -> None:
        raise error("the storage does not answer")

    monkeypatch.setattr(train.dcp.FileSystemReader, "read_metadata", fail)
    with pytest.raises(error):
        checkpointer.resume(0)
    with pytest.raises(error):
        checkpointer.save()
    assert (path / ".metadata").exists() and len([*path.iterdir()]) == 2


def test_half_written_checkpoints_older_than_a_whole_one_are_removed_and_newer_ones_are_left(checkpointer) -> None:
    for step in (3, 9):
        (checkpointer.folder / f"step-{step}").mkdir(parents=True)
    save(checkpointer, 5)
    assert {path.name for path in checkpointer.folder.iterdir()} == {"step-5", "step-9"}
