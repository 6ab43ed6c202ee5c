"""Each way in which people install the skill, as far as it goes without the client."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pytorch_fsdp2_dcp.validate.skill import NAME, PARTS, TARGETS

from .commands import SKILL, assert_refused, fsdp2
from .test_skill import VALIDATOR


def works(skill: Path, tmp_path: Path) -> None:
    """What an agent does with it: it reads SKILL.md and what that links to, and runs a verb in a folder of its own."""
    process = subprocess.run([VALIDATOR, "validate", skill], capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stdout + process.stderr
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", (skill / "SKILL.md").read_text()):
        assert (skill / target).exists(), target
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(exist_ok=True)
    bad = skill / "references" / "rules" / "FS401-optimizer-before-sharding" / "bad.py"
    command = [sys.executable, str(skill), "lint", str(bad)]
    process = subprocess.run(command, cwd=elsewhere, capture_output=True, text=True, check=False)
    assert process.returncode == 1, process.stderr
    assert "FS401" in process.stdout


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("scope", ["--project", "--user"])
def test_the_verb_puts_a_skill_that_works_where_the_client_looks(target: str, scope: str, tmp_path: Path) -> None:
    home, project = tmp_path / "home", tmp_path / "project"
    for folder in (home, project):
        folder.mkdir()
    process = fsdp2("skill", "install", "--target", target, scope, cwd=project, HOME=str(home))
    assert process.returncode == 0, process.stderr
    skill = (home if scope == "--user" else project) / TARGETS[target] / NAME
    assert process.stdout.strip() == str(skill)
    assert {path.name for path in skill.iterdir()} == set(PARTS)
    assert [path.name for path in skill.parent.iterdir()] == [NAME]
    if target == "claude":
        works(skill, tmp_path)


@pytest.mark.slow
def test_a_copy_is_replaced_whole_and_can_install_again(tmp_path: Path) -> None:
    assert fsdp2("skill", "install", "--target", "claude", cwd=tmp_path).returncode == 0
    skill = tmp_path / TARGETS["claude"] / NAME
    (skill / "validate" / "left over.py").touch()
    assert fsdp2("skill", "install", "--target", "claude", cwd=tmp_path).returncode == 0
    assert not (skill / "validate" / "left over.py").exists()
    command = [sys.executable, str(skill), "skill", "install", "--target", "gemini"]
    assert subprocess.run(command, cwd=tmp_path, capture_output=True, check=False).returncode == 0
    works(tmp_path / TARGETS["gemini"] / NAME, tmp_path)
    command[-1] = "claude"
    process = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert_refused(process, "is the skill that runs")


@pytest.mark.parametrize("what", ["file", "folder", "link"])
def test_something_else_of_the_name_is_left_alone(what: str, tmp_path: Path) -> None:
    place = tmp_path / TARGETS["codex"] / NAME
    place.parent.mkdir(parents=True)
    if what == "file":
        place.write_text("mine")
    elif what == "folder":
        place.mkdir()
    else:
        place.symlink_to(SKILL)
    assert_refused(fsdp2("skill", "install", "--target", "codex", cwd=tmp_path), str(place), "no copy of this skill")
    assert list(place.parent.iterdir()) == [place]
    assert what != "file" or place.read_text() == "mine"


def test_a_place_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / ".claude").write_text("a file")
    assert_refused(fsdp2("skill", "install", "--target", "claude", cwd=tmp_path), ".claude", "expected a folder")


@pytest.mark.slow
@pytest.mark.parametrize("way", ["copied", "linked"])
def test_the_folder_copied_or_linked_works(way: str, tmp_path: Path) -> None:
    skill = tmp_path / ".claude" / "skills" / NAME
    skill.parent.mkdir(parents=True)
    if way == "copied":
        shutil.copytree(SKILL, skill, ignore=shutil.ignore_patterns(".git", ".venv", ".*cache", "__pycache__"))
        works(skill, tmp_path)
    else:  # the validator looks at the folder's real name, which of a clone is anything
        skill.symlink_to(SKILL)
        assert fsdp2("explain", "FS401", cwd=tmp_path).returncode == 0
        command = [sys.executable, str(skill), "explain", "FS401"]
        assert subprocess.run(command, cwd=tmp_path, capture_output=True, check=False).returncode == 0


def test_the_marketplace_offers_this_folder_as_a_plugin_with_one_skill() -> None:
    manifest = json.loads((SKILL / ".claude-plugin" / "marketplace.json").read_text())
    assert set(manifest) == {"name", "owner", "metadata", "plugins"}
    assert re.fullmatch(r"[a-z0-9-]+", manifest["name"])
    assert manifest["owner"]["name"]
    (plugin,) = manifest["plugins"]
    assert set(plugin) == {"name", "description", "source", "strict", "skills"}
    assert plugin["strict"] is False  # the entry is the plugin's whole definition; there is no plugin.json
    assert plugin["source"].startswith("./")
    assert [(SKILL / plugin["source"] / path / "SKILL.md").is_file() for path in plugin["skills"]] == [True]


@pytest.mark.slow
def test_a_git_url_has_the_skill_where_installers_look(tmp_path: Path) -> None:
    """Installers that take a git URL clone it and look for SKILL.md, first at the top."""
    clone = tmp_path / NAME
    command = ["git", "clone", "--quiet", "--no-hardlinks", str(SKILL), str(clone)]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    if process.returncode:
        pytest.skip(f"no git repository to clone: {process.stderr.strip()}")
    found = [path.parent for path in clone.rglob("SKILL.md")]
    assert found == [clone]
    works(clone, tmp_path)
