"""Scripts whose options hold every pair of values, run on gloo ranks: each trains, keeps the rules, resumes exactly.

A row's name is the command line that generates it; `pytest -k` takes a part of one.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")
from pytorch_fsdp2_dcp.templates.mesh import example_ranks, parse_mesh
from pytorch_fsdp2_dcp.templates.options import answer
from pytorch_fsdp2_dcp.templates.render import render
from pytorch_fsdp2_dcp.validate import header
from pytorch_fsdp2_dcp.validate.launch import launcher
from pytorch_fsdp2_dcp.validate.proofs.bench import Bench, Subject
from pytorch_fsdp2_dcp.validate.proofs.resume import Resume
from pytorch_fsdp2_dcp.validate.proofs.trace import RulesHold

from ..combinations import Row
from .inputs import missing, prepare
from .rows import spelled, to_run

pytestmark = [pytest.mark.slow, pytest.mark.matrix]


@pytest.fixture(scope="module", autouse=True)
def compiled_once(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Iterator[None]:
    """What `torch.compile` made for one row serves the next, whichever process of the tests that comes to."""
    own = tmp_path_factory.getbasetemp()
    folder = (own if worker_id == "master" else own.parent) / "inductor"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(folder))
        yield


@pytest.mark.parametrize("row", to_run(), ids=spelled)
def test_a_combination_trains_keeps_the_rules_and_resumes_exactly(row: Row, tmp_path: Path) -> None:
    if reason := missing(row):
        assert "CI" not in os.environ, reason
        pytest.skip(reason)
    script = tmp_path / "train.py"
    script.write_text(render(answer(row)))
    carried = header.parse(script.read_text())
    assert carried is not None
    subject = Subject(
        script=script,
        args=(*carried.proof_args, *prepare(row, tmp_path)),
        nproc=example_ranks(parse_mesh(row["mesh"])),
        cwd=tmp_path,
        checkpoint_arg=carried.checkpoint_arg,
        stop_after=None,
        timeout=300,
    )
    (tmp_path / "runs").mkdir()
    bench = Bench(subject, launcher("warm"), tmp_path / "runs")
    for proof in (RulesHold(), Resume()):
        verdict = proof.prove(bench)
        assert verdict.status == "pass", verdict
    by_rank = [[statistics.mean(step.losses) for step in rank if step.step > 0] for rank in bench.straight.measured]
    losses = [statistics.mean(ranks) for ranks in zip(*by_rank, strict=True)]
    assert len(losses) == 8
    assert losses[-1] < losses[0], losses
