"""A run that is killed and goes on with another mesh, again and again, computes what it would have in place."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")
from pytorch_fsdp2_dcp.templates.mesh import parse_mesh

from .training import SMALL, records_of, warm_run, write_script

pytestmark = pytest.mark.slow

OPTIONS = {**SMALL, "--steps": "18", "--checkpoint-interval": "3", "--dropout": "0"}
LEGS = (
    *(("dp_shard=2", 2), ("dp_shard=2,tp=2", 4), ("dp_replicate=2,dp_shard=2", 4), ("dp_shard=1", 1)),
    *(("dp_replicate=2,dp_shard=1,tp=2", 4), ("dp_replicate=1,dp_shard=1,tp=2", 2)),
)
"""Meshes and their numbers of ranks, one after the other; each leg ends one step after a checkpoint of its own."""


def script_for(folder: Path, **chosen: str) -> Path:
    folder.mkdir()
    return write_script(folder, **chosen)


def arguments(checkpoints: Path, log: Path) -> list[str]:
    options = {**OPTIONS, "--checkpoint-dir": str(checkpoints), "--log": str(log)}
    return [word for pair in options.items() for word in pair]


@pytest.mark.matrix
@pytest.mark.parametrize("chosen", [{}, {"optimizer": "sgd", "async_mode": "disabled", "cpu_offload": "on"}], ids=str)
def test_a_run_that_moves_from_mesh_to_mesh_stays_the_same_run(tmp_path: Path, chosen: dict[str, str]) -> None:
    assert all(ranks % abs(size) == 0 for mesh, ranks in LEGS for size in parse_mesh(mesh).values())
    mesh, ranks = LEGS[0]
    script = script_for(tmp_path / "straight", mesh=mesh, **chosen)
    straight = warm_run(script, ranks, arguments(tmp_path / "a", tmp_path / "a.jsonl"))
    assert straight.succeeded, straight.ends
    for number, (mesh, ranks) in enumerate(LEGS):
        stop = None if number == len(LEGS) - 1 else 4  # counted from where it resumes
        script = script_for(tmp_path / f"leg-{number}", mesh=mesh, **chosen)
        leg = warm_run(script, ranks, arguments(tmp_path / "b", tmp_path / "b.jsonl"), stop)
        assert f"from step {3 * number} to 18" in leg.ends[0].output, leg.ends
        assert leg.succeeded or stop, leg.ends
    expected, moved = records_of(tmp_path / "a.jsonl"), records_of(tmp_path / "b.jsonl")
    assert [record["step"] for record in moved] == list(range(1, 19))
    for one, other in zip(moved, expected, strict=True):
        assert one == pytest.approx(other, rel=1e-5)


@pytest.mark.parametrize("mesh", ["dp_shard=2,tp=2", "dp_replicate=2,dp_shard=1,tp=2"])
def test_every_parameter_is_on_one_mesh_so_that_foreach_takes_them_together(tmp_path: Path, mesh: str) -> None:
    """As on GPUs, where optimizers and clipping group parameters by default; on CPUs only when told to."""
    script = script_for(tmp_path / "foreach", mesh=mesh)
    text = script.read_text()
    assert text.count("lr=args.lr,") == text.count("model.parameters(), 1.0)") == 1
    text = text.replace("lr=args.lr,", "lr=args.lr, foreach=True,")
    script.write_text(text.replace("model.parameters(), 1.0)", "model.parameters(), 1.0, foreach=True)"))
    logs = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    grouped = warm_run(script, 4, arguments(tmp_path / "a", logs[0]))
    assert grouped.succeeded, grouped.ends
    one_by_one = warm_run(script_for(tmp_path / "plain"), 1, arguments(tmp_path / "b", logs[1]))
    assert one_by_one.succeeded, one_by_one.ends
    for one, other in zip(*map(records_of, logs), strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-5)
