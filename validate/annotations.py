"""Findings as annotations of a GitHub Actions run: workflow commands that GitHub reads from a step's output.

Source: GitHub documentation, "Workflow commands for GitHub Actions", and the escaping of its toolkit's `command.ts`.
"""

from __future__ import annotations

from collections.abc import Sequence

from .findings import Finding, Severity

_COMMANDS = {Severity.ERROR: "error", Severity.WARN: "warning", Severity.INFO: "notice"}


def as_annotations(findings: Sequence[Finding]) -> list[str]:
    """One workflow command a finding; the other places involved are further lines of its message."""
    return [_annotation(finding) for finding in findings]


def _annotation(finding: Finding) -> str:
    at = finding.at
    properties = {
        "file": at.file,
        "line": str(at.line),
        "col": str(at.column),
        "title": f"{finding.code} {finding.name}",
    }
    message = "\n".join([finding.message, *(f"{place}: {word}" for place, word in finding.related)])
    given = ",".join(f"{name}={_property(value)}" for name, value in properties.items())
    return f"::{_COMMANDS[finding.severity]} {given}::{_data(message)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
