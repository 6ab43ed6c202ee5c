"""Findings as SARIF 2.1.0, the format in which code hosts take the results of static analysis (OASIS, March 2020)."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from . import report
from .events import Location
from .explain import Page, read_pages
from .findings import Finding

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_LEVELS = {"error": "error", "warn": "warning", "info": "note"}


def as_sarif(
    findings: Sequence[Finding], problems: Sequence[str], version: str, line_of: Callable[[str, int], str]
) -> dict[str, Any]:
    """One log with one run: the rule book as rules, each finding a result, `problems` as notifications of the tool.

    `line_of` gives the text of a line of a file. It, not its number, goes into a result's fingerprint, so that the
    finding stays the same one when lines above it come and go.
    """
    pages = {page.code: page for page in read_pages()}
    index = {code: number for number, code in enumerate(pages)}
    alike: Counter[tuple[str, str, str]] = Counter()
    results = []
    for finding in findings:
        like = (finding.code, _uri(finding.at.file), line_of(finding.at.file, finding.at.line).strip())
        alike[like] += 1
        results.append(_result(finding, index[finding.code], _digest(*like, str(alike[like]))))
    return {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "fsdp2",
                        "version": version,
                        "shortDescription": {"text": "Finds mistakes in FSDP2 and DCP training scripts"},
                        "rules": [_rule(page) for page in pages.values()],
                    }
                },
                "invocations": [
                    {
                        "executionSuccessful": not problems,
                        "toolExecutionNotifications": [
                            {"level": "error", "message": {"text": problem}} for problem in problems
                        ],
                    }
                ],
                "columnKind": "unicodeCodePoints",
                "results": results,
            }
        ],
    }


def _rule(page: Page) -> dict[str, Any]:
    return {
        "id": page.code,
        "name": "".join(word.capitalize() for word in page.name.split("-")),
        "shortDescription": {"text": page.summary},
        "fullDescription": {"text": page.summary},
        "help": {"text": f"`fsdp2 explain {page.code}` shows this page.\n\n{page.text}", "markdown": page.text},
        "defaultConfiguration": {"level": _LEVELS[page.severity]},
        "properties": {"page": report.page(page.code, page.name), "tags": ["fsdp2", page.name]},
    }


def _result(finding: Finding, rule_index: int, fingerprint: str) -> dict[str, Any]:
    result: dict[str, Any] = {
        "ruleId": finding.code,
        "ruleIndex": rule_index,
        "level": _LEVELS[finding.severity.value],
        "message": {"text": finding.message},
        "locations": [{"physicalLocation": _place(finding.at)}],
        "partialFingerprints": {"codeAndSourceLine/v1": fingerprint},
        "properties": {"clause": finding.clause, "page": report.page(finding.code, finding.name)},
    }
    if finding.related:
        result["relatedLocations"] = [
            {"id": number, "physicalLocation": _place(at), "message": {"text": word}}
            for number, (at, word) in enumerate(finding.related, start=1)
        ]
    return result


def _place(at: Location) -> dict[str, Any]:
    return {
        "artifactLocation": {"uri": _uri(at.file)},
        "region": {"startLine": at.line, "startColumn": at.column},
    }


def _uri(file: str) -> str:
    """A path below the working directory relative to it, as code hosts want it; any other path in full."""
    path = os.path.abspath(file)  # noqa: PTH100 - unlike `resolve` it keeps a symbolic link's own name
    if path.startswith(os.getcwd().rstrip(os.sep) + os.sep):  # noqa: PTH109 - a string beside strings
        return quote(os.path.relpath(path).replace(os.sep, "/"), errors="surrogateescape")
    return Path(path).as_uri()


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode(errors="surrogatepass")).hexdigest()[:32]
