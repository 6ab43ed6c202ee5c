"""The command as a whole: in place and installed, with Python alone, beside user modules that are named like ours."""

from __future__ import annotations

import re
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from pytorch_fsdp2_dcp.validate.command import main

from .commands import SKILL, assert_refused, fsdp2

VERBS = ("generate", "lint", "validate", "explain", "inspect", "convert", "plan")


@pytest.fixture
def bare(tmp_path: Path) -> str:
    """A PYTHONPATH on which importing torch or jinja2 fails, as where they are not installed."""
    for module in ("torch", "jinja2"):
        message = f"No module named {module!r}"
        (tmp_path / f"{module}.py").write_text(f"raise ModuleNotFoundError({message!r}, name={module!r})\n")
    return str(tmp_path)


@pytest.mark.parametrize("verb", VERBS)
def test_help_needs_neither_torch_nor_jinja2_and_ends_with_examples(verb: str, bare: str, tmp_path: Path) -> None:
    process = fsdp2(verb, "--help", cwd=tmp_path, PYTHONPATH=bare)
    assert process.returncode == 0, process.stderr
    assert process.stdout.rstrip().splitlines()[-1].startswith(f"  fsdp2 {verb}")


def test_lint_and_explain_need_neither_torch_nor_jinja2(bare: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("from torch.distributed.fsdp import fully_shard\n")
    for arguments in (("lint", "train.py"), ("explain",), ("explain", "FS401")):
        process = fsdp2(*arguments, cwd=tmp_path, PYTHONPATH=bare)
        assert process.returncode == 0, process.stderr


def test_what_is_missing_is_named(bare: str, tmp_path: Path) -> None:
    assert_refused(fsdp2("generate", "--out", "-", cwd=tmp_path, PYTHONPATH=bare), "jinja2")


def test_an_unknown_verb_is_refused(tmp_path: Path) -> None:
    process = fsdp2("prove", cwd=tmp_path)
    assert process.returncode == 2
    assert "invalid choice: 'prove'" in process.stderr


@pytest.mark.parametrize("verb", [("inspect",), ("lint",), ("plan", "--config")])
def test_a_name_of_two_lines_is_refused_in_one(verb: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*verb, "no such\n\x1b[1mfile"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "no such\\n\\x1b[1mfile" in line


def test_a_reader_that_has_gone_is_no_traceback(tmp_path: Path) -> None:
    process = subprocess.run(
        f"'{sys.executable}' '{SKILL}' explain FS401 | head -c 1",
        shell=True,
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert process.stderr == ""


SHADOWS = ("validate", "templates", "recipes", "tests", "references")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A user's project with modules of the same names as our folders; its script fails unless it gets its own."""
    for name in SHADOWS:
        (tmp_path / f"{name}.py").write_text("MINE = True\n")
    (tmp_path / "train.py").write_text(
        "".join(f"import {name}\nassert {name}.MINE\n" for name in SHADOWS)
        + "import torch.distributed as dist\n"
        + "import torch\nfrom torch.distributed.fsdp import fully_shard\n"
        + "dist.init_process_group('gloo')\n"
        + "fully_shard(torch.nn.Linear(2, 2))\n"
        + "dist.destroy_process_group()\n"
    )
    return tmp_path


def test_our_modules_are_found_beside_a_users_of_the_same_name(project: Path) -> None:
    process = fsdp2("lint", "train.py", cwd=project, PYTHONPATH=str(project))
    assert process.returncode == 0, process.stderr


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["warm", "torchrun"])
def test_a_users_modules_are_found_in_a_validated_run(project: Path, launcher: str) -> None:
    process = fsdp2("validate", "train.py", "--prove", "trace", "--launcher", launcher, cwd=project)
    assert process.returncode == 0, process.stdout + process.stderr


def test_every_package_is_in_the_wheel() -> None:
    listed = re.findall(r'^  "pytorch_fsdp2_dcp\.([\w.]+)",$', (SKILL / "pyproject.toml").read_text(), re.MULTILINE)
    there = [path.parent for top in ("templates", "validate") for path in (SKILL / top).rglob("__init__.py")]
    assert sorted(listed) == sorted(".".join(folder.relative_to(SKILL).parts) for folder in there)


@pytest.mark.slow
def test_a_wheel_gives_the_same_command(tmp_path: Path) -> None:
    """Built in isolation and installed without torch: it lints, explains and, given jinja2, generates."""
    run = {"check": True, "capture_output": True, "text": True}
    subprocess.run([sys.executable, "-m", "build", "--wheel", "--outdir", tmp_path / "dist", SKILL], **run)
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    venv.create(tmp_path / "env", with_pip=True)
    binaries = tmp_path / "env" / "bin"
    subprocess.run([binaries / "pip", "install", "--quiet", wheel], **run)
    subprocess.run([binaries / "fsdp2", "generate", "--out", "train.py"], cwd=tmp_path, **run)
    subprocess.run([binaries / "fsdp2", "lint", "train.py"], cwd=tmp_path, **run)
    page = subprocess.run([binaries / "fsdp2", "explain", "FS401"], cwd=tmp_path, **run).stdout
    in_place = fsdp2("generate", "--out", "-", cwd=tmp_path).stdout
    assert (tmp_path / "train.py").read_text() == in_place
    assert page == fsdp2("explain", "FS401", cwd=tmp_path).stdout
