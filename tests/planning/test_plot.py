"""The picture of a plan: what is drawn are the figures of the plan, and it depends on nothing else."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from pytorch_fsdp2_dcp.validate.command import main
from pytorch_fsdp2_dcp.validate.planning import plot
from pytorch_fsdp2_dcp.validate.planning.interval import lost_share
from pytorch_fsdp2_dcp.validate.planning.plan import Question, answer
from pytorch_fsdp2_dcp.validate.planning.report import Plan
from pytorch_fsdp2_dcp.validate.quantities import shown_seconds

from .test_command import NUMBERS
from .test_formulas import training


def planned(**asked: Any) -> Plan:
    """A small model on 16 ranks, planned with what is asked for."""
    question: dict[str, Any] = {
        **dict.fromkeys(("config", "model", "block", "parallelize", "bandwidth", "measure", "mtbf", "fits")),
        "params": 10**7,
        "shape": {"layers": 2, "hidden": 128, "heads": None, "kv_heads": None, "vocab": None},
        **{"mesh": "dp_shard=-1", "nodes": 2, "ranks_per_node": 8, "training": training()},
        **{"staging_bandwidth": 10**10, "restart": 300.0, "scale": False},
    }
    return answer(Question(**(question | asked)))


@pytest.fixture(autouse=True)
def drawn() -> None:
    pytest.importorskip("matplotlib")


def test_the_bars_are_the_bytes_of_a_rank_and_of_each_mesh_that_fits() -> None:
    plan = planned(fits=4 * 10**9)
    assert plan.fitting
    (axes,) = plot.draw(plan).axes
    ends: dict[float, float] = {}
    for bar in axes.patches:
        place = bar.get_y() + bar.get_height() / 2
        assert bar.get_x() == pytest.approx(ends.get(place, 0.0))  # on top of the one before
        ends[place] = bar.get_x() + bar.get_width()
    memory = plan.memory
    others = [proposal for proposal in plan.fitting if str(proposal.mesh) != "dp_shard=16" or proposal.checkpointing]
    assert [*ends.values()] == [
        memory.parameters + memory.optimizer + memory.buffers,
        memory.peak,
        *(proposal.memory.peak for proposal in others),
    ]
    labels = [label.get_text().replace("\n", " ") for label in axes.get_yticklabels()]
    assert labels[:2] == ["between two steps", f"peak, in {memory.where}"]
    assert all(str(other.mesh) in label for other, label in zip(others, labels[2:], strict=True))
    (limit,) = axes.lines
    assert set(limit.get_xdata()) == {4 * 10**9}


def test_where_nothing_fits_the_mesh_that_needs_least_is_drawn() -> None:
    plan = planned(fits=1000)
    assert plan.least is not None
    (axes,) = plot.draw(plan).axes
    assert str(plan.least.mesh) in axes.get_yticklabels()[-1].get_text()


def test_the_optima_lie_on_the_curve_of_the_time_that_is_lost() -> None:
    plan = planned(bandwidth=10**9, mtbf=30 * 86400.0)
    found = plan.savings[0].interval
    assert found is not None
    _, axes = plot.draw(plan).axes
    lines = {line.get_label(): (list(line.get_xdata()), list(line.get_ydata())) for line in axes.lines}
    assert len(lines) == 2 * 3  # a save that blocks, and one that does not, in two ways
    every, lost = lines[f"disabled: stops for {shown_seconds(found.cost)}"]
    young, daly = [lines[label] for label in lines if label.startswith(("Young", "Daly"))][:2]
    assert (young[0], daly[0]) == ([found.young], [found.daly])
    for x, y in zip((*every, *young[0], *daly[0]), (*lost, *young[1], *daly[1]), strict=True):
        assert y == lost_share(x, found.cost, found.mtbf, found.restart)
    assert daly[1][0] == pytest.approx(min(lost), rel=1e-3)
    assert every[0] < found.daly < every[-1]


def test_what_is_shorter_than_a_save_is_in_grey() -> None:
    """An asynchronous save stops little, and could be had more often than one can be written."""
    plan = planned(bandwidth=10**6, mtbf=30 * 86400.0)
    _, axes = plot.draw(plan).axes
    (grey,) = axes.patches
    assert grey.get_x() + grey.get_width() == pytest.approx(plan.seconds)
    assert [text.get_text() for text in axes.texts] == [f"shorter than a save, {shown_seconds(plan.seconds or 0)}"]
    _, axes = plot.draw(planned(bandwidth=10**12, mtbf=30 * 86400.0)).axes
    assert not axes.patches


@pytest.mark.slow
@pytest.mark.parametrize("suffix", plot.SUFFIXES)
def test_the_same_plan_is_the_same_file_whatever_the_users_style(suffix: str) -> None:
    import matplotlib

    plan = planned(fits=4 * 10**9, bandwidth=10**9, mtbf=30 * 86400.0)
    with matplotlib.rc_context({"lines.linewidth": 9, "axes.facecolor": "red", "font.size": 30}):
        other = plot.picture(plan, suffix)
        assert matplotlib.rcParams["font.size"] == 30
    assert plot.picture(plan, suffix) == other
    assert other.startswith({".png": b"\x89PNG", ".svg": b"<?xml"}[suffix])


def test_the_command_draws_beside_what_it_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)  # which is not imported
    monkeypatch.setenv("MPLBACKEND", "TkAgg")  # which needs a display
    (tmp_path / "plan.svg").write_text("the one before")
    assert main([*NUMBERS, "--plot", "plan.svg"]) == 0
    printed = capsys.readouterr()
    assert (printed.out.splitlines()[0], printed.err) == ("12 layers of 768: 125 M parameters in 111 tensors", "")
    assert "<!-- 12 layers of 768: 125 M parameters in 111 tensors -->" in (tmp_path / "plan.svg").read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["plan.svg"]
