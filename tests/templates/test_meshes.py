"""Meshes against each other: how the ranks are arranged changes nothing but rounding."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")
from pytorch_fsdp2_dcp.templates.mesh import example_ranks, parse_mesh
from pytorch_fsdp2_dcp.templates.render import PROOF_ARGS

from .rows import TABLE
from .training import TEXT, warm_run, write_script

pytestmark = pytest.mark.slow

ARRANGEMENTS = [
    *((mesh, example_ranks(parse_mesh(mesh))) for mesh in TABLE["mesh"]),
    ("dp_shard=-1", 4),
    ("dp_replicate=2,dp_shard=-1", 2),
    ("dp_shard=-1,tp=2", 2),
    ("dp_replicate=2,dp_shard=-1,tp=2", 8),
]


def log(folder: Path, mesh: str, ranks: int) -> list[dict[str, float]]:
    """What a run on this mesh logs. No dropout: its masks depend on the ranks."""
    script = write_script(folder, mesh=mesh, async_mode="disabled")
    run = warm_run(script, ranks, (*PROOF_ARGS, "--dropout", "0", "--data", str(TEXT), "--log", "log.jsonl"))
    assert run.succeeded, [(end.code, end.output) for end in run.ends]
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, float]]:
    """The same training by one process."""
    return log(tmp_path_factory.mktemp("alone"), "dp_shard=-1", 1)


@pytest.mark.matrix
@pytest.mark.parametrize(("mesh", "ranks"), ARRANGEMENTS)
def test_a_mesh_computes_what_one_process_computes(
    mesh: str, ranks: int, alone: list[dict[str, float]], tmp_path: Path
) -> None:
    """From the same seed, with the same global batch: losses within 1e-5 and gradient norms within 1e-3 of them.

    Adam divides by gradients that are next to nothing in the first steps, which carries rounding into the norms.
    """
    records = log(tmp_path, mesh, ranks)
    assert [record["step"] for record in records] == [record["step"] for record in alone] == list(range(1, 9))
    assert [r["loss"] for r in records] == pytest.approx([r["loss"] for r in alone], rel=0, abs=1e-5)
    assert [r["grad_norm"] for r in records] == pytest.approx([r["grad_norm"] for r in alone], rel=1e-3)
