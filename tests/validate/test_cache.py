"""What `lint` keeps between runs: the same as it would find, until something that it was found by has changed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from pytorch_fsdp2_dcp.validate import linter
from pytorch_fsdp2_dcp.validate.cache import LIFETIME
from pytorch_fsdp2_dcp.validate.linter import Outcome, lint
from pytorch_fsdp2_dcp.validate.reader import Reading, read
from pytorch_fsdp2_dcp.validate.sources import find_sources

TRAIN = """\
import torch
from setup import shard

model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
optimizer = torch.optim.AdamW(model.parameters())  # fsdp2: ignore[FS402] for a test
shard(model)
optimizer.step()
print("distributed import", torch.distributed.get_rank())
"""
SHARD = """\
from torch.distributed.fsdp import fully_shard


def shard(model):
    for block in model:
        fully_shard(block)
    fully_shard(model)
"""
RIGHT = "def shard(model):\n    pass\n"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two files, one of which imports the other, with a cache of their own; however small, they are worth one."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(linter, "PARALLEL_FROM", 0)
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").write_text(TRAIN)
    (folder / "setup.py").write_text(SHARD)
    monkeypatch.chdir(folder)
    return folder


pytestmark = pytest.mark.usefixtures("project")


def linted(**options: bool) -> list[Outcome]:
    return lint([(source, None) for source in find_sources(["."])], **options)


def codes(outcomes: list[Outcome]) -> list[str]:
    return [finding.code for outcome in outcomes for finding in outcome.findings]


def test_what_was_found_is_found_again_without_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    first = linted(cached=True)
    assert "FS401" in codes(first) and any(outcome.comments for outcome in first)
    monkeypatch.setattr(linter, "read", lambda *_, **__: pytest.fail("a file was read"))
    assert linted(cached=True) == first


def test_it_is_what_would_be_found_without_a_cache() -> None:
    first, kept = linted(cached=True), linted(cached=True)
    for one, other in zip(kept, linted(), strict=True):
        assert (one.findings, one.comments, one.notes, one.files) == (
            other.findings,
            other.comments,
            other.notes,
            other.files,
        )
    assert kept == first


CHANGES: dict[str, Callable[[], object]] = {
    "the file": lambda: Path("train.py").write_text(TRAIN.replace("shard(model)\n", "")),
    "a module that it imports": lambda: Path("setup.py").write_text(RIGHT),
    "a module that is found before that": lambda: (Path("setup").mkdir(), Path("setup/__init__.py").write_text(RIGHT)),
    "a module that is gone": lambda: Path("setup.py").unlink(),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_has_changed_is_read_anew(change: Callable[[], object]) -> None:
    before = linted(cached=True)
    change()
    after = linted(cached=True)
    assert after == linted()
    assert [o.findings for o in after if o.name.endswith("train.py")] != [
        o.findings for o in before if o.name.endswith("train.py")
    ]


def test_a_change_that_keeps_size_and_time_is_seen() -> None:
    linted(cached=True)
    status = Path("setup.py").stat()
    Path("setup.py").write_text(RIGHT.ljust(len(SHARD)))
    os.utime("setup.py", ns=(status.st_atime_ns, status.st_mtime_ns))
    assert Path("setup.py").stat().st_size == status.st_size
    assert "FS401" not in codes(linted(cached=True))


def test_another_release_of_torch_is_another_question(monkeypatch: pytest.MonkeyPatch) -> None:
    linted(cached=True)
    # Files are linted in processes of their own, too: what happened there shows in the outcomes alone.
    monkeypatch.setattr(linter, "lint_one", lambda source, *_, **__: Outcome(source.name, problem="linted anew"))
    outcomes = lint([(source, "2.6") for source in find_sources(["."])], cached=True)
    assert [outcome.problem for outcome in outcomes] == ["linted anew"] * 2


def test_what_is_in_the_cache_is_not_trusted(project: Path) -> None:
    expected = linted(cached=True)
    entries = [path for path in (project.parent / "cache").rglob("*") if path.is_file()]
    assert len(entries) == 2
    for content in ("", "{}", "[1]", '{"folders": ["."]}', entries[0].read_text()[:-20], "\x00"):
        for entry in entries:
            entry.write_text(content)
        assert linted(cached=True) == expected


def test_what_changes_while_it_is_read_is_not_kept(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def reading(*arguments: object, **options: object) -> Reading:
        found = read(*arguments, **options)  # type: ignore[arg-type]
        (project / "setup.py").touch()
        return found

    monkeypatch.setattr(linter, "read", reading)
    linted(cached=True)
    entries = [path.read_text() for path in (project.parent / "cache").rglob("*") if path.is_file()]
    assert not [entry for entry in entries if "train.py" in entry]


def test_entries_do_not_stay_forever(project: Path) -> None:
    linted(cached=True)
    entries = [path for path in (project.parent / "cache").rglob("*") if path.is_file()]
    for entry in entries:
        os.utime(entry, (0, time.time() - LIFETIME - 1))
    Path("train.py").write_text(TRAIN + "\n")  # so that there is something to keep
    linted(cached=True)
    assert entries and not any(entry.exists() for entry in entries)


@pytest.mark.parametrize("where", ["/dev/null/x", "/proc/none"])
def test_where_nothing_can_be_kept_all_is_read(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = linted()
    monkeypatch.setenv("XDG_CACHE_HOME", where)
    assert linted(cached=True) == expected
