"""A run that is killed and goes on with another mesh, again and again, computes what it would have in place."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")
from pytorch_fsdp2_dcp.templates.mesh import parse_mesh
from pytorch_fsdp2_dcp.validate.launch import launcher
from pytorch_fsdp2_dcp.validate.launch.job import Job, Probe, Run

from .training import SMALL, records_of, write_script

pytestmark = pytest.mark.slow

OPTIONS = {**SMALL, "--steps": "18", "--checkpoint-interval": "3", "--dropout": "0"}
LEGS = (
    *(("dp_shard=2", 2), ("dp_shard=2,tp=2", 4), ("dp_replicate=2,dp_shard=2", 4), ("dp_shard=1", 1)),
    *(("dp_replicate=2,dp_shard=1,tp=2", 4), ("dp_replicate=1,dp_shard=1,tp=2", 2)),
)
"""Meshes and their numbers of ranks, one after the other; each leg ends one step after a checkpoint of its own."""


def run(folder: Path, mesh: str, ranks: int, checkpoints: Path, log: Path, stop: int | None, **chosen: str) -> Run:
    folder.mkdir()
    options = {**OPTIONS, "--checkpoint-dir": str(checkpoints), "--log": str(log)}
    scratch = folder / "scratch"
    scratch.mkdir()
    return launcher("warm").run(
        Job(
            script=write_script(folder, mesh=mesh, **chosen),
            args=tuple(word for pair in options.items() for word in pair),
            nproc=ranks,
            cwd=folder,
            scratch=scratch,
            deadline=120,
            probe=Probe(stop_after=stop),
        )
    )


@pytest.mark.parametrize("chosen", [{}, {"optimizer": "sgd", "async_mode": "disabled", "cpu_offload": "on"}], ids=str)
def test_a_run_that_moves_from_mesh_to_mesh_stays_the_same_run(tmp_path: Path, chosen: dict[str, str]) -> None:
    assert all(ranks % abs(size) == 0 for mesh, ranks in LEGS for size in parse_mesh(mesh).values())
    straight = run(tmp_path / "straight", *LEGS[0], tmp_path / "a", tmp_path / "a.jsonl", None, **chosen)
    assert straight.succeeded, straight.ends
    for number, (mesh, ranks) in enumerate(LEGS):
        stop = None if number == len(LEGS) - 1 else 4 if number == 0 else 3 + 1  # counted from where it resumes
        leg = run(tmp_path / f"leg-{number}", mesh, ranks, tmp_path / "b", tmp_path / "b.jsonl", stop, **chosen)
        assert f"from step {3 * number} to 18" in leg.ends[0].output, leg.ends
        assert leg.succeeded or stop, leg.ends
    expected, moved = records_of(tmp_path / "a.jsonl"), records_of(tmp_path / "b.jsonl")
    assert [record["step"] for record in moved] == list(range(1, 19))
    for one, other in zip(moved, expected, strict=True):
        assert one == pytest.approx(other, rel=1e-5)


@pytest.mark.parametrize("mesh", ["dp_shard=2,tp=2", "dp_replicate=2,dp_shard=1,tp=2"])
def test_every_parameter_is_on_one_mesh_so_that_foreach_takes_them_together(tmp_path: Path, mesh: str) -> None:
    """As on GPUs, where optimizers and clipping group parameters by default; on CPUs only when told to."""
    folder = tmp_path / "foreach"
    folder.mkdir()
    script = write_script(folder, mesh=mesh)
    text = script.read_text()
    assert text.count("lr=args.lr,") == text.count("model.parameters(), 1.0)") == 1
    text = text.replace("lr=args.lr,", "lr=args.lr, foreach=True,")
    script.write_text(text.replace("model.parameters(), 1.0)", "model.parameters(), 1.0, foreach=True)"))
    logs = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    options = {**OPTIONS, "--checkpoint-dir": str(tmp_path / "checkpoints"), "--log": str(logs[0])}
    (tmp_path / "scratch").mkdir()
    grouped = launcher("warm").run(
        Job(
            script=script,
            args=tuple(word for pair in options.items() for word in pair),
            nproc=4,
            cwd=folder,
            scratch=tmp_path / "scratch",
            deadline=120,
        )
    )
    assert grouped.succeeded, grouped.ends
    one_by_one = run(tmp_path / "plain", "dp_shard=-1", 1, tmp_path / "other", logs[1], None)
    assert one_by_one.succeeded, one_by_one.ends
    for one, other in zip(*map(records_of, logs), strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-5)
