"""The corpus as it is measured by `make measure`, and what is known to be amiss there."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from .measure import CORPUS, Mark, Measured, labels, measure, plant, write_programs

# One of these that is found, or a new one, fails the test: change the list then, and the figures with it.
KNOWN_MISSES = {
    "FS301-evaluate.py",
    "FS612-process_writer.py",
    "FS903-convert.py",
}


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    write_programs(folder)
    return folder


@pytest.fixture(scope="module")
def measured(programs: Path) -> Measured:
    return measure(programs)


@pytest.mark.slow
def test_what_is_missed_is_known(measured: Measured) -> None:
    assert {mark.file.removeprefix("planted/") for mark in measured.misses} == KNOWN_MISSES


def test_nothing_else_is_found(measured: Measured) -> None:
    assert [str(mark) for mark in measured.alarms] == []


def test_each_planted_program_has_one_label_of_the_rule_that_it_is_named_after(programs: Path) -> None:
    labelled = Counter((mark.file.split("/")[1].removesuffix(".py"), mark.code) for mark in labels(programs))
    assert labelled == {(edits.stem, edits.stem[:5]): 1 for edits in (CORPUS / "planted").iterdir()}


def test_the_programs_compile(programs: Path) -> None:
    for path in programs.glob("**/*.py"):
        compile(path.read_text(), path, "exec")


def test_an_edit_that_does_not_fit_fails(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\n\ny = 1\n")
    plant(tmp_path, "@@ a.py\n x = 1\n\n-y = 1\n+y = 2\n")
    assert (tmp_path / "a.py").read_text() == "x = 1\n\ny = 2\n"
    with pytest.raises(AssertionError, match="expected once"):
        plant(tmp_path / "a.py", "@@ a.py\n-y = 1\n+y = 3\n")


def test_figures() -> None:
    one, other = Mark("FS401", "planted/a.py", 1), Mark("FS402", "right/b.py", 2)
    measured = Measured(hits=(one, one, one), misses=(other,), alarms=(one,))
    assert (measured.precision, measured.recall) == (0.75, 0.75)
    assert measured.codes() == ["FS401", "FS402"]
    assert (measured.only("FS402").hits, measured.only("FS402").recall) == ((), 0.0)
