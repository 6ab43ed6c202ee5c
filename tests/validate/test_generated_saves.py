"""Generated scripts of every async mode and kind of mesh keep what they save, however they are ended."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..commands import SKILL, fsdp2
from .test_prove import Validate, validate  # noqa: F401 - a fixture

pytestmark = [pytest.mark.slow, pytest.mark.matrix]


@pytest.mark.parametrize(
    ("mode", "mesh", "ranks"),
    [
        ("disabled", "dp_shard=-1", 2),
        ("async", "dp_shard=-1", 2),
        ("async_with_pinned_mem", "dp_shard=-1", 2),
        pytest.param("disabled", "dp_shard=-1,tp=2", 4, marks=pytest.mark.wide),
        ("async", "dp_replicate=2,dp_shard=-1", 4),
        pytest.param("async_with_pinned_mem", "dp_shard=-1,tp=2", 4, marks=pytest.mark.wide),
    ],
)
def test_a_generated_script_keeps_what_it_saves(
    mode: str,
    mesh: str,
    ranks: int,
    validate: Validate,  # noqa: F811
    tmp_path: Path,
) -> None:
    script = tmp_path / "train.py"
    fsdp2("generate", "--out", str(script), "--async-mode", mode, "--mesh", mesh, cwd=SKILL)
    options = ("--nproc", str(ranks), "--timeout", "300", "--prove", "crash" if mode == "disabled" else "crash,async")
    data = str(SKILL / "tests" / "fixtures" / "text.md")
    code, proofs, stderr = validate(script, *options, "--", "--data", data, "--keep-latest", "2")
    assert code == 0, (proofs, stderr)
    assert proofs["crash"]["figures"]["not_seen"] == []
    harms = {cut["harm"] for cut in proofs["crash"]["figures"]["cuts"]}
    assert ("kill writer" in harms) == (mode == "async_with_pinned_mem")
    if mode != "disabled":
        figures = proofs["async"]["figures"]
        assert figures["steps_meanwhile"] == 2
        assert figures["tensors"] > 50
        assert 0 not in figures["exit_codes_when_saves_fail"]
