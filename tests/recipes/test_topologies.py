"""One run's checkpoints, on other numbers of ranks, on another mesh, in one process, and in one file."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch
from pytorch_fsdp2_dcp.validate.launch.job import Run
from safetensors.torch import load_file

from .running import RECIPES, TEXT, TRAINING, losses, run

LONG = (*TRAINING, "--epochs", "2", "--checkpoint-interval", "5")
STEP = "step-00000010"


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Path]:
    """A run of b_blocking.py on two ranks, and where its checkpoints are."""
    place = tmp_path_factory.mktemp("straight")
    return run("b_blocking.py", place, 2, *LONG), place / "work" / "checkpoints"


def resumed(recipe: str, ranks: int, checkpoints: Path, place: Path) -> list[float]:
    """The losses of a run that has the checkpoint of step 10 alone to begin with."""
    shutil.copytree(checkpoints / STEP, place / "work" / "checkpoints" / STEP)
    return losses(run(recipe, place, ranks, *LONG))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "ranks"),
    [
        ("b_blocking.py", 1),
        pytest.param("b_blocking.py", 4, marks=pytest.mark.matrix),
        ("tensor_parallel.py", 4),
    ],
)
def test_a_run_goes_on_on_another_topology_with_the_same_losses(
    recipe: str, ranks: int, straight: tuple[Run, Path], tmp_path: Path
) -> None:
    whole, checkpoints = straight
    after = resumed(recipe, ranks, checkpoints, tmp_path)
    assert len(after) == len(losses(whole)) - 10 > 3
    assert after == pytest.approx(losses(whole)[10:], abs=2e-5)


@pytest.mark.slow
@pytest.mark.matrix
def test_a_run_with_tensor_parallelism_goes_on_without(straight: tuple[Run, Path], tmp_path: Path) -> None:
    whole, _ = straight
    parallel = run("tensor_parallel.py", tmp_path / "parallel", 4, *LONG)
    assert losses(parallel) == pytest.approx(losses(whole), abs=2e-5)
    checkpoints = tmp_path / "parallel" / "work" / "checkpoints"
    after = resumed("b_blocking.py", 2, checkpoints, tmp_path / "after")
    assert after == pytest.approx(losses(whole)[10:], abs=2e-5)


@pytest.mark.slow
def test_one_process_judges_a_checkpoint_and_what_is_exported_is_the_same_by_each_way(
    straight: tuple[Run, Path], tmp_path: Path
) -> None:
    _, checkpoints = straight
    first, last = (
        losses(run("evaluate.py", tmp_path, 1, str(checkpoints / step), "--data", str(TEXT)))[0]
        for step in ("step-00000005", "step-00000026")
    )
    assert last < first
    one, other, again = tmp_path / "one.pt", tmp_path / "other.safetensors", tmp_path / "again.pt"
    for file in (one, other):
        run("export.py", tmp_path, 2, str(checkpoints / STEP), "--out", str(file))
    run("by_hand.py", tmp_path, 2, str(one), "--out", str(again))
    weights = torch.load(one)
    assert len(weights) == 30
    for copy in (load_file(other), torch.load(again)):
        assert copy.keys() == weights.keys()
        assert all(torch.equal(copy[name], weights[name]) for name in weights)
    assert not list(tmp_path.glob("*.new"))


@pytest.mark.slow
def test_both_kinds_of_saving_are_measured(tmp_path: Path) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    said = run("async_against_sync.py", tmp_path, 2, "--mebibytes", "6", TMPDIR=str(temporary)).ends[0].output
    for words in ("dcp.save        holds training up for", "dcp.async_save  holds", "times as long is a step"):
        assert words in said
    assert not list(temporary.glob("save-*"))


@pytest.mark.slow
@pytest.mark.matrix
def test_ray_trains_as_torchrun_does(straight: tuple[Run, Path], tmp_path: Path) -> None:
    pytest.importorskip("ray.train", reason="ray[train] is not installed")
    whole, checkpoints = straight
    with tempfile.TemporaryDirectory(prefix="ray") as folder:  # Ray's sockets need a short path
        environment = {
            "HOME": folder, "RAY_TMPDIR": folder, "RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1",
            "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "180",
        }  # fmt: skip
        command = [sys.executable, str(RECIPES / "ray_train.py"), *LONG, "--checkpoint-dir", str(tmp_path / "ray")]
        process = subprocess.run(
            command, env={**os.environ, **environment}, capture_output=True, text=True, check=False, timeout=400
        )
    assert process.returncode == 0, process.stdout + process.stderr
    ours, theirs = (
        losses(run("evaluate.py", tmp_path, 1, str(where / "step-00000026"), "--data", str(TEXT)))
        for where in (checkpoints, tmp_path / "ray")
    )
    assert theirs == pytest.approx(ours, abs=2e-5)
    assert len(losses(whole)) == 26
