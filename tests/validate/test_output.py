"""The formats of `lint` other than text and JSON, and the counts: what programs on the other side read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from pytorch_fsdp2_dcp.validate.annotations import as_annotations
from pytorch_fsdp2_dcp.validate.events import Location
from pytorch_fsdp2_dcp.validate.findings import Finding, Severity
from pytorch_fsdp2_dcp.validate.report import LINE_LIMIT, Lines, as_text
from pytorch_fsdp2_dcp.validate.sarif import as_sarif

from ..commands import assert_refused, fsdp2, fsdp2_json
from ..schemas import LINT, SARIF
from .test_lint import EARLY_OPTIMIZER


def finding(file: str = "train.py", line: int = 5, message: str = "wrong", **changed: Any) -> Finding:
    at = Location(file, line, 3)
    related = ((Location("model.py", 7), "sharded here"),)
    fields = {"severity": Severity.ERROR, "related": related, **changed}
    return Finding("FS401", "optimizer-before-sharding", clause=4, message=message, at=at, **fields)


def sarif(*findings: Finding, texts: dict[str, str] | None = None, problems: tuple[str, ...] = ()) -> Any:
    log = as_sarif(findings, problems, "1.2.3", Lines({"train.py": "a\nb\n", **(texts or {})}))
    jsonschema.validate(log, SARIF)
    return log["runs"][0]


def fingerprints(*findings: Finding, text: str) -> list[str]:
    results = sarif(*findings, texts={"train.py": text})["results"]
    return [value for result in results for value in result["partialFingerprints"].values()]


def test_the_command_writes_sarif_with_both_places_and_the_rules_page(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(EARLY_OPTIMIZER)
    process = fsdp2("lint", "train.py", "--format", "sarif", cwd=tmp_path)
    log = json.loads(process.stdout)
    jsonschema.validate(log, SARIF)
    (run,) = log["runs"]
    (result,) = run["results"]
    rule = run["tool"]["driver"]["rules"][result["ruleIndex"]]
    assert process.returncode == 1
    assert (rule["id"], result["ruleId"], result["level"]) == ("FS401", "FS401", "error")
    assert "## Why is this bad?" in rule["help"]["markdown"]
    assert result["locations"][0]["physicalLocation"]["region"] == {"startLine": 5, "startColumn": 13}
    assert result["relatedLocations"][0]["physicalLocation"]["region"]["startLine"] == 6


@pytest.mark.parametrize(
    ("severity", "level", "command"),
    [
        (Severity.ERROR, "error", "error"),
        (Severity.WARN, "warning", "warning"),
        (Severity.INFO, "note", "notice"),
    ],
)
def test_severities_have_their_word_in_each_format(severity: Severity, level: str, command: str) -> None:
    found = finding(severity=severity)
    assert sarif(found)["results"][0]["level"] == level
    assert as_annotations([found])[0].startswith(f"::{command} file=train.py,line=5,col=3,")


def test_a_fingerprint_does_not_change_when_lines_move_and_does_when_the_line_changes() -> None:
    before = fingerprints(finding(line=2), text="import torch\nopt = AdamW()\n")
    moved = fingerprints(finding(line=4), text="import torch\n\n\n    opt = AdamW()\n")
    changed = fingerprints(finding(line=2), text="import torch\nopt = Adam()\n")
    assert before == moved != changed


def test_findings_on_lines_that_read_the_same_have_different_fingerprints() -> None:
    first, second = fingerprints(finding(line=1), finding(line=2), text="opt = AdamW()\nopt = AdamW()\n")
    assert first != second


def test_what_could_not_be_read_is_a_notification_and_no_success() -> None:
    run = sarif(problems=("a.py:1: does not parse",))
    assert run["invocations"][0]["executionSuccessful"] is False
    assert run["invocations"][0]["toolExecutionNotifications"][0]["message"]["text"] == "a.py:1: does not parse"


def test_file_names_are_relative_uris_below_the_working_directory_and_absolute_ones_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    names = ["a b#1.py", str(tmp_path / "here" / "x.py"), str(tmp_path / "other.py"), "caf\udce9.py"]
    results = sarif(*(finding(file=name) for name in names))["results"]
    uris = [result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] for result in results]
    assert uris == ["a%20b%231.py", "x.py", (tmp_path / "other.py").as_uri(), "caf%E9.py"]


def test_annotations_escape_what_github_would_read_as_syntax() -> None:
    found = finding(file="a,b:c%.py", message="100% wrong\r\nindeed: yes, so")
    (line,) = as_annotations([found])
    assert line == (
        "::error file=a%2Cb%3Ac%25.py,line=5,col=3,title=FS401 optimizer-before-sharding::"
        "100%25 wrong%0D%0Aindeed: yes, so%0Amodel.py:7: sharded here"
    )


def test_text_is_bounded_and_one_line_a_name() -> None:
    found = finding(file="a\nb.py", line=1)
    lines = as_text([found], Lines({"a\nb.py": "x" * 5000}))
    assert lines[0].startswith("a\\nb.py:1:3: FS401")
    assert max(map(len, lines)) < LINE_LIMIT + 20
    assert len(as_text([found] * 500, Lines({}))) < 200


def test_lines_are_counted_as_python_counts_them() -> None:
    lines = Lines({"a.py": "one\r\ntwo\rthree\x0cstill three\nfour\u2028still four"})
    assert [lines("a.py", n) for n in range(6)] == [
        "",
        "one",
        "two",
        "three\x0cstill three",
        "four\u2028still four",
        "",
    ]


def test_standard_input_shows_its_source_line_too(tmp_path: Path) -> None:
    process = fsdp2("lint", "-", "--stdin-filename", "other.py", cwd=tmp_path, input=EARLY_OPTIMIZER)
    assert "    5 | optimizer = torch.optim.AdamW(model.parameters())" in process.stdout.splitlines()


def test_statistics_count_the_findings_of_each_rule(tmp_path: Path) -> None:
    for name in ("a.py", "b.py"):
        (tmp_path / name).write_text(EARLY_OPTIMIZER)
    process = fsdp2("lint", ".", "--statistics", cwd=tmp_path)
    assert process.stdout.splitlines()[1:] == ["     2  FS401  optimizer-before-sharding"]
    document = fsdp2_json("lint", ".", "--statistics", cwd=tmp_path)
    jsonschema.validate(document, LINT)
    assert document["statistics"] == [{"code": "FS401", "name": "optimizer-before-sharding", "count": 2}]
    assert_refused(
        fsdp2("lint", ".", "--statistics", "--format", "sarif", cwd=tmp_path), "--statistics", "text and json"
    )
