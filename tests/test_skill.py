"""SKILL.md: it is a valid skill, and what it says of the command is so."""

from __future__ import annotations

import argparse
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest
from pytorch_fsdp2_dcp.validate.command import VERBS
from pytorch_fsdp2_dcp.validate.rules import RULES

from .commands import SKILL

DOCUMENTS = [SKILL / "SKILL.md", SKILL / "README.md"]
VALIDATOR = Path(sys.executable).with_name("agentskills")


def validate_skill(text: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    """Run the reference validator, which wants the folder to have the skill's name."""
    folder = tmp_path / "pytorch-fsdp2-dcp"
    folder.mkdir()
    (folder / "SKILL.md").write_text(text)
    return subprocess.run([VALIDATOR, "validate", folder], capture_output=True, text=True, check=False)


def test_the_skill_is_valid(tmp_path: Path) -> None:
    process = validate_skill((SKILL / "SKILL.md").read_text(), tmp_path)
    assert process.returncode == 0, process.stdout + process.stderr


def test_the_validator_refuses_a_key_that_is_not_in_the_specification(tmp_path: Path) -> None:
    text = (SKILL / "SKILL.md").read_text().replace("license: MIT", "license: MIT\nversion: '1'", 1)
    assert validate_skill(text, tmp_path).returncode != 0


def test_the_skill_is_short_enough_to_be_read_whole() -> None:
    text = (SKILL / "SKILL.md").read_text()
    assert len(text.splitlines()) < 400
    assert len(text) / 4 < 4000  # tokens, at four characters a token


def test_the_versions_agree() -> None:
    versions = {
        re.search(r'version: "([\d.]+)"', (SKILL / "SKILL.md").read_text()),
        re.search(r'^version = "([\d.]+)"', (SKILL / "pyproject.toml").read_text(), re.MULTILINE),
        re.search(r"^## ([\d.]+)", (SKILL / "CHANGELOG.md").read_text(), re.MULTILINE),
        re.search(r'"version": "([\d.]+)"', (SKILL / ".claude-plugin" / "marketplace.json").read_text()),
    }
    assert len({match and match[1] for match in versions}) == 1


def flags(verb: str) -> set[str]:
    module = importlib.import_module(VERBS[verb][0], "pytorch_fsdp2_dcp.validate")
    parser = argparse.ArgumentParser()
    module.configure(parser)
    return {option for action in parser._actions for option in action.option_strings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_command_that_a_document_shows_has_those_flags(document: Path) -> None:
    commands = re.findall(r"(?:python (?:\.|<skill-dir>)|fsdp2) (\w+)([^\n`#]*)", document.read_text())
    assert len(commands) >= 4
    for verb, rest in commands:
        if verb not in VERBS:
            assert verb == "VERB", verb
            continue
        own = rest.split(" -- ")[0]
        assert set(re.findall(r"--[a-z][a-z-]+", own)) <= flags(verb), (verb, rest)


def test_every_rule_that_the_skill_names_exists() -> None:
    known = {rule.code for rule in RULES}
    for document in DOCUMENTS:
        assert set(re.findall(r"\bFS\d{3}\b", document.read_text())) <= known


def test_every_clause_of_the_contract_that_a_rule_guards_is_in_the_skill() -> None:
    clauses = {int(n) for n in re.findall(r"^(\d+)\. \*\*", (SKILL / "SKILL.md").read_text(), re.MULTILINE)}
    assert clauses == set(range(1, 13))
    guarded = {rule.clause for rule in RULES}
    assert guarded <= clauses
    (said,) = re.findall(r"so far ([\d, and]+)\.", (SKILL / "SKILL.md").read_text())
    assert {int(n) for n in re.findall(r"\d+", said)} == guarded


@pytest.mark.parametrize(
    "document", [*DOCUMENTS, SKILL / "AGENTS.md", SKILL / "recipes" / "README.md"], ids=lambda path: str(path.name)
)
def test_every_path_that_a_document_links_to_exists(document: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", document.read_text()):
        assert (SKILL / target).exists(), target
