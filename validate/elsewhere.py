"""What the other files that are linted say, where that takes the ground from a finding.

A program that gives torch a name of its own (`fsdp.fully_shard = ...`) may use it; keys that another program of the
project reads with `_orig_mod.` in mind are no surprise to it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from .findings import Finding

CODES = {"FS613", "FS905"}  # of the findings that may be answered
_NAMES = re.compile(r"`([\w.]+)`")
_PREFIX = b"_orig_mod"


def kept(findings: Sequence[Finding], file: str, contents: Sequence[tuple[str, bytes]]) -> list[Finding]:
    """The findings in a file that still hold beside the contents of all files, by name."""
    return [f for f in findings if not _answered(f, file, contents)]


def _answered(finding: Finding, file: str, contents: Sequence[tuple[str, bytes]]) -> bool:
    if finding.code == "FS905":
        parts = {part for name in _NAMES.findall(finding.message) for part in name.split(".")} - {"torch"}
        sets = re.compile(rb"^\s*(?!self\b|cls\b)[\w.]+\.(?:%s)\s*=(?!=)" % "|".join(parts).encode(), re.MULTILINE)
        return bool(parts) and any(sets.search(content) for content in _that_mention(parts, contents))
    if finding.code == "FS613":
        return any(_PREFIX in content for name, content in contents if name not in (file, finding.at.file))
    return False


def _that_mention(parts: Iterable[str], contents: Sequence[tuple[str, bytes]]) -> Iterator[bytes]:
    words = [part.encode() for part in parts]
    return (content for _, content in contents if any(word in content for word in words))
