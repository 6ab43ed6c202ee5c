"""Where the metrics of generated scripts go: TensorBoard, Weights & Biases, and the progress line of a terminal."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import shutil
import struct
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
from .loaded import load_script, parse
from .training import DEADLINE, Training, kill_all, write_script

NAMES = ("loss", "grad_norm", "lr", "tokens_per_s")


def killed_and_resumed(folder: Path, metrics: str) -> Training:
    """A run with checkpoints after steps 4, 8 and 12, killed between the first two, and run again to its end."""
    options = {f"--{metrics}": str(folder / metrics), "--global-batch": "2"}
    training = Training(write_script(folder, metrics=metrics), folder / "run", ranks=1, options=options)
    with training.started() as process:
        training.wait_for_step(6, process)
        kill_all(process)
    assert [record["step"] for record in training.finish()] == list(range(1, 13))
    return training


def logged(training: Training) -> dict[str, dict[int, float]]:
    """By name and step, what the log holds."""
    records = [json.loads(line) for line in training.log.read_text().splitlines()]
    return {name: {record["step"]: record[name] for record in records} for name in NAMES}


@pytest.mark.slow
def test_tensorboard_shows_each_step_once_although_the_run_was_killed(tmp_path: Path) -> None:
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    training = killed_and_resumed(tmp_path, "tensorboard")
    events = accumulators.EventAccumulator(str(tmp_path / "tensorboard"), size_guidance={"scalars": 0}).Reload()
    assert sorted(events.Tags()["scalars"]) == sorted(NAMES)
    for name, expected in logged(training).items():
        scalars = events.Scalars(name)
        assert [scalar.step for scalar in scalars] == list(range(1, 13))
        assert [scalar.value for scalar in scalars] == pytest.approx(list(expected.values()), rel=1e-6)
    assert len(list((tmp_path / "tensorboard").iterdir())) == 2


@pytest.mark.slow
def test_weights_and_biases_gets_each_step_once_in_one_run_although_it_was_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Offline, each start writes a folder, named after the run of which it is a part."""
    pytest.importorskip("wandb")
    monkeypatch.delenv("WANDB_MODE", raising=False)
    options = {"--wandb": str(tmp_path / "wandb"), "--steps": "200", "--checkpoint-interval": "1000"}
    training = Training(write_script(tmp_path, metrics="wandb"), tmp_path / "run", ranks=1, options=options)
    with training.started() as process:
        training.wait_for_step(3, process)
        process.terminate()
        process.communicate(timeout=60)
    training.finish()
    folders = sorted((tmp_path / "wandb" / "wandb").glob("offline-run-*"))
    assert len(folders) == 2 and len({folder.name.rsplit("-", 1)[1] for folder in folders}) == 1
    first, second = (read_wandb(folder) for folder in folders)
    told = {step: record for step, record in enumerate([*first, *second], 1)}
    assert [record.pop("step") for record in told.values()] == list(range(1, 201))
    assert all(record.pop("_step") == step for step, record in told.items())
    assert len(first) >= 3 and len(second) >= 1
    expected = logged(training)
    assert all(
        {name: record[name] for name in NAMES} == {n: expected[n][step] for n in NAMES} for step, record in told.items()
    )


def read_wandb(folder: Path) -> list[dict[str, Any]]:
    """The history of a folder's run, which was closed.

    The file is a header of 7 bytes and a LevelDB log: blocks of 32 KiB with parts of records, each after its checksum,
    its length and a mark for whole, first, middle and last parts.
    """
    from wandb.proto.wandb_internal_pb2 import Record

    (path,) = folder.glob("run-*.wandb")
    data, at, parts = path.read_bytes(), 7, b""
    history: list[dict[str, Any]] = []
    kinds: list[str] = []
    while at < len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        _, length, mark = struct.unpack_from("<IHB", data, at)
        parts, at = parts + data[at + 7 : at + 7 + length], at + 7 + length
        if mark in (1, 4):
            record, parts = Record.FromString(parts), b""
            kinds.append(record.WhichOneof("record_type"))
            if items := record.history.item:
                history.append({item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in items})
    assert "exit" in kinds
    return history


def test_only_a_resumed_run_goes_on_with_the_id_that_the_folder_keeps(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    train = load_script(tmp_path, metrics="wandb")

    class Run:
        def __init__(self, **given: Any) -> None:
            self.id, self.given = given["id"] or f"new-{len(runs)}", given
            runs.append(self)

    runs: list[Run] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("wandb.init", Run)
        patch.delenv("WANDB_MODE", raising=False)
        args = parse(train, patch, wandb=str(tmp_path / "kept"))
        for step, mode in ((0, None), (2, None), (2, "online"), (0, "offline")):
            if mode:
                patch.setenv("WANDB_MODE", mode)
            train.open_wandb(args.wandb, step, args)
    assert [run.id for run in runs] == ["new-0", "new-0", "new-0", "new-3"]
    assert [run.given["mode"] for run in runs] == ["offline", "offline", "online", "offline"]
    assert [run.given["resume"] for run in runs] == [None, None, "allow", None]
    json.dumps(runs[0].given["config"])


@pytest.mark.parametrize("metrics", ["tensorboard", "wandb"])
def test_a_package_that_is_missing_is_told_where_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], metrics: str
) -> None:
    train = load_script(tmp_path, metrics=metrics)
    monkeypatch.setattr(train, "find_spec", lambda _: None)
    parse(train, monkeypatch)
    with pytest.raises(SystemExit) as caught:
        parse(train, monkeypatch, **{metrics: str(tmp_path / "folder")})
    (line,) = capsys.readouterr().err.splitlines()
    assert caught.value.code == 2
    assert f"expected {metrics}" in line and f"pip install {metrics}" in line


@pytest.mark.slow
def test_a_terminal_shows_one_line_that_is_rewritten_in_place(tmp_path: Path) -> None:
    """What is left on the screen are the lines that are printed, whole; where stderr is a file it stays empty."""
    training = Training(write_script(tmp_path), tmp_path / "run", ranks=1, options={"--global-batch": "2"})
    shown = on_a_terminal(training)
    for step in (*range(1, 10), 11):
        assert re.search(rf"step {step}: loss \d+\.\d+, \d+ tokens/s, \d+ min left\x1b\[K\r", shown), shown
    lines = [line for line in screen(shown) if line.startswith("step")]
    assert [line.split(":")[0] for line in lines] == ["step 10", "step 12"]
    assert all(re.fullmatch(r"step \d+: loss \d+\.\d+, grad norm \d+\.\d+, \d+ tokens/s", line) for line in lines), (
        lines
    )
    shutil.rmtree(training.checkpoints)
    process = training.run()
    assert "min left" not in process.stdout + process.stderr


def on_a_terminal(training: Training) -> str:
    """What a run writes to a terminal."""
    training.folder.mkdir(exist_ok=True)
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        training.command(), stdout=theirs, stderr=theirs, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    os.close(theirs)
    written = b""
    try:
        with contextlib.suppress(OSError):  # once nobody has the other end any more
            while True:
                written += os.read(ours, 65536)
        assert process.wait(DEADLINE) == 0, written
    finally:
        kill_all(process)
        os.close(ours)
    return written.decode()


def screen(written: str) -> list[str]:
    """The lines that are seen in the end, by a terminal that returns, and clears to the end of a line, when told."""
    lines, column = [""], 0
    for piece in re.findall(r"\x1b\[K|\r|\n|[^\x1b\r\n]+", written):
        if piece == "\n":
            lines.append("")
        elif piece == "\r":
            column = 0
        elif piece == "\x1b[K":
            lines[-1] = lines[-1][:column]
        else:
            lines[-1] = lines[-1][:column] + piece + lines[-1][column + len(piece) :]
            column += len(piece)
    return lines
