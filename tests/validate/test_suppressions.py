"""`# fsdp2: ignore[...]`: what a comment covers, and that a comment which covers nothing is told."""

from __future__ import annotations

from pathlib import Path

import pytest
from pytorch_fsdp2_dcp.validate import suppressions
from pytorch_fsdp2_dcp.validate.events import Location
from pytorch_fsdp2_dcp.validate.findings import Finding, Severity


def finding(line: int, code: str = "FS401", file: str = "t.py") -> Finding:
    return Finding(code, "a-name", Severity.ERROR, 4, "a message", Location(file, line))


def left(text: str, *findings: Finding) -> list[Finding]:
    return suppressions.apply(findings, suppressions.find("t.py", text))


@pytest.mark.parametrize(
    "text",
    [
        "x = f()  # fsdp2: ignore[FS401] the reason",
        "x = f()  # fsdp2:ignore[FS401]",
        "x = f()  # fsdp2: ignore[FS101, FS401] two codes",
        "x = f(\n    1,\n)  # fsdp2: ignore[FS401] after the closing bracket",
        "x = f(  # fsdp2: ignore[FS401] on the first of several lines\n    1,\n)",
        "x = f()  # noqa: E501  # fsdp2: ignore[FS401] beside another comment",
    ],
)
def test_a_comment_covers_the_statement_it_stands_on(text: str) -> None:
    assert left(text, finding(1)) == []


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("x = f()  # fsdp2: ignore[FS101] another code", 1),
        ("x = f()  # fsdp2: ignore no code", 1),
        ("x = '# fsdp2: ignore[FS401] in a string'", 1),
        ("# fsdp2: ignore[FS401] on a line of its own\nx = f()", 2),
        ("x = f()  # fsdp2: ignore[FS401]\ny = f()", 2),
        ("for i in range(3):  # fsdp2: ignore[FS401] the header is not the body\n    f()", 2),
    ],
)
def test_a_comment_covers_nothing_else(text: str, line: int) -> None:
    assert left(text, finding(line)) == [finding(line)]


def test_a_finding_of_another_file_is_not_covered() -> None:
    other = finding(1, file="other.py")
    assert left("x = f()  # fsdp2: ignore[FS401]", other) == [other]


def test_the_comments_of_the_files_that_findings_are_in_are_read(tmp_path: Path) -> None:
    (tmp_path / "t.py").write_text("x = f()  # fsdp2: ignore[FS401] a test\n")
    (tmp_path / "other.py").write_text("y = f()  # fsdp2: ignore[FS401] no finding is here\n")
    found = [finding(1), finding(1, "FS403"), finding(1, file="<string>")]
    comments = suppressions.beside(found, tmp_path)
    assert [comment.at.file for comment in comments] == ["t.py"]
    assert suppressions.apply(found, comments) == found[1:]


def stale(text: str, judged: set[str], *findings: Finding) -> list[str]:
    comments = suppressions.find("t.py", text)
    suppressions.apply(findings, comments)
    return [f.message for f in suppressions.stale(comments, frozenset(judged))]


def test_a_suppression_that_suppresses_nothing_is_told() -> None:
    (message,) = stale("x = f()  # fsdp2: ignore[FS401, FS403]", {"FS401", "FS403"}, finding(1))
    assert "FS403 is not found here" in message


def test_a_suppression_of_a_rule_that_did_not_run_is_left_alone() -> None:
    assert stale("x = f()  # fsdp2: ignore[FS401]", {"FS403"}) == []


def test_a_suppression_without_a_code_or_of_an_unknown_one_is_told() -> None:
    (nothing,) = stale("x = f()  # fsdp2: ignore because", {"FS401"})
    (unknown,) = stale("x = f()  # fsdp2: ignore[FS999] because", {"FS401"})
    assert "names no rule" in nothing
    assert "there is no rule FS999" in unknown
