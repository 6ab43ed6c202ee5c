"""The verb `explain`, run as a user does."""

from __future__ import annotations

from pathlib import Path

import jsonschema
import pytest
from pytorch_fsdp2_dcp.validate.explain import PAGES
from pytorch_fsdp2_dcp.validate.rules import RULES

from ..commands import assert_refused, fsdp2, fsdp2_json

LIST = {
    "type": "object",
    "additionalProperties": False,
    "required": ["version", "rules"],
    "properties": {
        "version": {"const": 1},
        "rules": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "additionalProperties": False,
                "required": ["code", "name", "severity", "seen_by", "summary"],
                "properties": {
                    "code": {"type": "string", "pattern": "^FS[0-9]{3}$"},
                    "name": {"type": "string", "pattern": "^[a-z0-9-]+$"},
                    "severity": {"enum": ["error", "warn", "info"]},
                    "seen_by": {"type": "array", "minItems": 1, "items": {"enum": ["reader", "probe", "lint"]}},
                    "summary": {"type": "string", "minLength": 10},
                },
            },
        },
    },
}


@pytest.mark.parametrize("rule", ["FS701", "fs701", "optimizer-loaded-lazily"])
def test_a_rule_goes_by_its_code_or_its_name(rule: str, tmp_path: Path) -> None:
    shown = fsdp2("explain", rule, cwd=tmp_path)
    assert shown.returncode == 0
    assert shown.stdout == (PAGES / "FS701-optimizer-loaded-lazily" / "page.md").read_text()


def test_the_list_has_every_rule_on_a_line(tmp_path: Path) -> None:
    listed = fsdp2("explain", cwd=tmp_path).stdout.splitlines()
    for rule in RULES:
        (line,) = (line for line in listed if line.startswith(rule.code))
        assert line.split()[1:3] == [rule.name, rule.severity.value]


def test_the_list_as_json_keeps_its_schema(tmp_path: Path) -> None:
    document = fsdp2_json("explain", cwd=tmp_path)
    jsonschema.validate(document, LIST)
    assert {rule.code for rule in RULES} <= {rule["code"] for rule in document["rules"]}


def test_an_unknown_rule_is_refused_with_those_that_are_near(tmp_path: Path) -> None:
    assert_refused(fsdp2("explain", "forward-bypased", cwd=tmp_path), "forward-bypased", "FS403 forward-bypassed")
    assert_refused(fsdp2("explain", "FS80", cwd=tmp_path), "FS801 async-save-not-awaited", "FS802")
    assert_refused(fsdp2("explain", "xyz", cwd=tmp_path), "`fsdp2 explain` lists the rules")
    assert_refused(fsdp2("explain", "FS701", "--format", "json", cwd=tmp_path), "--format json")
