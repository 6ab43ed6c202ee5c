"""Which torch a program is written for."""

from __future__ import annotations

from pathlib import Path

import pytest
from pytorch_fsdp2_dcp.validate import target
from pytorch_fsdp2_dcp.validate.errors import UserError
from pytorch_fsdp2_dcp.validate.target import Target


@pytest.mark.parametrize(
    ("file", "text", "release"),
    [
        ("requirements.txt", "numpy\ntorch>=2.7.1  # for DCP\n", "2.7"),
        ("requirements-gpu.txt", "torch==2.9.0+cu128\ntorchvision==0.24\n", "2.9"),
        ("requirements.txt", "torch>2.6,<3\n", "2.7"),
        ("requirements.txt", "torch~=2.8.0 ; sys_platform == 'linux'\n", "2.8"),
        ("requirements.txt", "torch<2.8\n", None),
        ("requirements.txt", "torch\ntorchdata>=0.11\n", None),
        ("requirements.txt", "torch>=2.6; platform_machine == 'arm64'\ntorch==2.8; sys_platform == 'linux'\n", "2.8"),
        ("pyproject.toml", '[project]\ndependencies = ["numpy>=1", "torch >= 2.7"]\n', "2.7"),
        ("pyproject.toml", '[project]\ndependencies = [\n"torch>=2.6"\n]\n[dependency-groups]\na=["torch==2"]', "2.6"),
        ("pyproject.toml", '[project]\nname = "torch"\n[project.optional-dependencies]\ngpu = ["torch==2.9"]\n', "2.9"),
        ("pyproject.toml", '[tool.poetry.dependencies]\ntorch = {version = "^2.7", source = "x"}\n', "2.7"),
        ("pyproject.toml", "[project\nbroken", None),
        ("uv.lock", 'name = "torch"\nversion = "2.9.1"\n\n[[package]]\nname = "torchdata"\nversion = "0.11"', "2.9"),
    ],
)  # fmt: skip
def test_a_project_pins_it(tmp_path: Path, file: str, text: str, release: str | None) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / file).write_text(text)
    (folder := tmp_path / "src" / "deep").mkdir(parents=True)
    pin = Target(folder / "train.py", "").pin
    assert (pin.release if pin else None) == release
    assert pin is None or file in pin.said


@pytest.mark.parametrize(
    ("project", "release"),
    [
        ('[project]\ndependencies = ["torchdata>=0.8", "pytorch-lightning"]\n', None),
        ('[project]\ndependencies = ["torchdata", "torch"]\n', "2.9"),
        ("[project]\ndependencies = ['torch[opt]>=2.6']\n", "2.9"),
        ('[project]\nname = "x"\n[tool.uv.sources]\ntorch = { index = "nightly" }\n', "2.9"),
    ],
)
def test_a_torch_that_only_something_else_needs_is_not_what_the_project_is_written_for(
    tmp_path: Path, project: str, release: str | None
) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "pyproject.toml").write_text(project)
    (tmp_path / "uv.lock").write_text('name = "torch"\nversion = "2.9.1"\n')
    pin = Target(tmp_path / "train.py", "").pin
    assert (pin.release if pin else None) == release


def test_the_nearest_folder_wins_and_a_lock_over_the_requirements_beside_it(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("torch>=2.6\n")
    (inner := tmp_path / "inner").mkdir()
    (inner / "pyproject.toml").write_text('[project]\ndependencies = ["torch>=2.7"]\n')
    (inner / "poetry.lock").write_text('name = "torch"\nversion = "2.10.0"\n')
    assert (pin := Target(inner / "a.py", "").pin) is not None
    assert pin.release == "2.10"


def test_nothing_above_the_root_of_the_project_counts(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("torch>=2.6\n")
    (tmp_path / "project" / ".git").mkdir(parents=True)
    assert Target(tmp_path / "project" / "a.py", "").pin is None


def test_a_script_states_its_own_and_the_user_has_the_last_word(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("torch>=2.6\n")
    text = '"""Doc."""\n# /// script\n# dependencies = [\n#   "torch>=2.8",\n# ]\n# ///\n'
    assert (pin := Target(tmp_path / "a.py", text).pin) is not None
    assert pin.release == "2.8"
    assert (pin := Target(tmp_path / "a.py", text, "2.9").pin) is not None
    assert pin.release == "2.9"


@pytest.mark.parametrize(("given", "release"), [("2.9", "2.9"), ("2.10.1", "2.10"), ("2.13.0+cpu", "2.13")])
def test_a_release_is_read(given: str, release: str) -> None:
    assert target.parse(given, "--torch") == release


@pytest.mark.parametrize("given", ["2", "latest", "", ">=2.6", "2.x"])
def test_what_is_no_release_is_refused(given: str) -> None:
    with pytest.raises(UserError, match="--torch"):
        target.parse(given, "--torch")
