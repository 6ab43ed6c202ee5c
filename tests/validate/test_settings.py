"""`[tool.fsdp2]` in pyproject.toml: what it settles, and what the command line has to say beside it."""

from __future__ import annotations

from pathlib import Path

import pytest
from pytorch_fsdp2_dcp.validate import settings
from pytorch_fsdp2_dcp.validate.errors import UserError
from pytorch_fsdp2_dcp.validate.settings import Settings, nearest

from ..commands import assert_refused, fsdp2, fsdp2_json
from .test_lint import EARLY_OPTIMIZER

pytest.importorskip("tomllib")  # configuration needs Python 3.11, or tomli


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Two scripts that break FS401, one of them in a folder."""
    (tmp_path / "tests").mkdir()
    for name in ("train.py", "tests/test_train.py"):
        (tmp_path / name).write_text(EARLY_OPTIMIZER)
    return tmp_path


def settle(folder: Path, toml: str) -> None:
    (folder / "pyproject.toml").write_text(f"[tool.fsdp2]\n{toml}\n")


def found(project: Path, *arguments: str) -> list[str]:
    return [f["file"] for f in fsdp2_json("lint", *(arguments or (".",)), cwd=project)["findings"]]


@pytest.mark.parametrize(
    ("toml", "arguments", "files"),
    [
        ("", [], ["tests/test_train.py", "train.py"]),
        ('select = ["FS6"]', [], []),
        ('select = ["optimizer-before-sharding"]', [], ["tests/test_train.py", "train.py"]),
        ('ignore = ["FS401"]', [], []),
        ('exclude = ["tests"]', [], ["train.py"]),
        ('exclude = ["tests/**"]', [], ["train.py"]),
        ('exclude = ["test_*.py"]', [], ["train.py"]),
        ('per-file-ignores = { "tests/*" = ["FS4"] }', [], ["train.py"]),
        ('per-file-ignores = { "**/test_*.py" = ["FS401"], "train.py" = ["FS6"] }', [], ["train.py"]),
        ('ignore = ["FS401"]', ["--ignore", "FS6"], ["tests/test_train.py", "train.py"]),
        ('select = ["FS6"]', ["--select", "FS4"], ["tests/test_train.py", "train.py"]),
    ],
)
def test_settings_choose_and_the_command_line_has_the_last_word(
    project: Path, toml: str, arguments: list[str], files: list[str]
) -> None:
    settle(project, toml)
    assert found(project, ".", *arguments) == files


def test_a_file_that_is_named_is_read_even_where_its_folder_is_excluded(project: Path) -> None:
    settle(project, 'exclude = ["tests"]')
    assert found(project, "tests/test_train.py") == ["tests/test_train.py"]
    assert_refused(fsdp2("lint", "tests", cwd=project), "pyproject.toml: [tool.fsdp2] exclude", "no file to lint")


def test_each_path_has_the_settings_of_the_nearest_file_that_has_some(project: Path) -> None:
    settle(project, 'ignore = ["FS401"]')
    (project / "tests" / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    assert found(project, "train.py", "tests") == []
    settle(project / "tests", 'ignore = ["FS6"]')
    assert found(project, "train.py", "tests") == ["tests/test_train.py"]


def test_the_exit_code_follows_what_is_shown(project: Path) -> None:
    for path in ("train.py", "tests/test_train.py"):
        (project / path).write_text("x = 1  # fsdp2: ignore[FS503] stale\n")
    assert fsdp2("lint", "train.py", cwd=project).returncode == 1
    settle(project, 'min-severity = "error"')
    assert fsdp2("lint", "train.py", cwd=project).returncode == 0
    assert fsdp2("lint", "train.py", "--min-severity", "warn", cwd=project).returncode == 1


def test_a_suppression_of_what_the_settings_do_not_show_is_not_stale(project: Path) -> None:
    accepted = EARLY_OPTIMIZER.replace("model.parameters())", "model.parameters())  # fsdp2: ignore[FS503] a test")
    (project / "train.py").write_text(accepted)
    settle(project, 'per-file-ignores = { "train.py" = ["FS401", "FS503"] }')
    assert fsdp2_json("lint", "train.py", cwd=project)["findings"] == []


@pytest.mark.parametrize(
    ("toml", "words"),
    [
        ("selects = []", "selects: there is no such key"),
        ('select = "FS4"', "select: expected a list of strings, not a string"),
        ("ignore = [1]", "ignore: expected a list of strings"),
        ('ignore = ["FS999"]', "ignore: FS999: no rule has a code that begins so"),
        ('min-severity = "high"', "min-severity: expected info, warn or error, not 'high'"),
        ("per-file-ignores = []", "per-file-ignores: expected a table"),
        ('per-file-ignores = { "a.py" = "FS4" }', "per-file-ignores 'a.py': expected a list of strings"),
        ('per-file-ignores = { "a.py" = ["FS999"] }', "FS999: no rule"),
        ("torch = 2.9", "torch: expected a release as a string"),
        ('torch = "new"', "torch: new: not a release of torch"),
        ("select = [", "does not parse"),
    ],
)
def test_a_mistake_is_one_line_that_names_the_file_and_the_key(project: Path, toml: str, words: str) -> None:
    settle(project, toml)
    assert_refused(fsdp2("lint", "train.py", cwd=project), "pyproject.toml: ", words)


def test_the_target_release_is_kept_for_the_rules_of_versions(tmp_path: Path) -> None:
    settle(tmp_path, 'torch = "2.9"')
    assert nearest(tmp_path / "train.py").torch == "2.9"


def test_without_a_parser_only_a_file_that_has_the_table_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python 3.10 has no TOML parser: a project that settles nothing must not notice."""
    monkeypatch.setattr(settings, "_toml", lambda: None)
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "pyproject.toml").write_text('[project]\ndependencies = ["pytorch-fsdp2-dcp"]\n')
    assert nearest(tmp_path / "plain") == Settings()
    (tmp_path / "settled").mkdir()
    settle(tmp_path / "settled", "")
    with pytest.raises(UserError, match=r"Python 3\.11 or newer"):
        nearest(tmp_path / "settled")
