"""What the other files that are linted say, where that takes the ground from a finding.

A program that gives torch a name of its own (`fsdp.fully_shard = ...`) may use it; keys that another program of the
project reads with `_orig_mod.` in mind are no surprise to it; a file of a name under which another one saves is not
somebody else's, nor need a file be that the program does not name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from .findings import Finding

CODES = {"FS613", "FS903", "FS905"}  # of the findings that may be answered
_NAMES = re.compile(r"`([\w.]+)`")
_NAMED = re.compile(r"`([^`]+)` is not written")
_PREFIX = b"_orig_mod"
_QUOTED = re.compile(rb"""["']([^"'\n]*\.(?:pt|pth|pth\.tar|ckpt|bin|pkl|pickle))["']""")
_FILLED_IN = re.compile(rb"\{[^{}]*\}|%\w")


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
    if finding.code == "FS903":
        here = next((content for name, content in contents if name == finding.at.file), b"")
        others = [content for name, content in contents if name != finding.at.file and b"torch.save(" in content]
        loaded = _NAMED.match(finding.message)
        names = _file_names(here if loaded is None else b"'%s'" % loaded[1].encode())
        if loaded is None and not names:
            return bool(others)  # it may be any of theirs
        return any(not names.isdisjoint(_file_names(content)) for content in others)
    return False


def _file_names(content: bytes) -> set[bytes]:
    """The names of files of tensors that a source speaks of, without folders, whatever is filled in."""
    return {_FILLED_IN.sub(b"*", found).rpartition(b"/")[2] for found in _QUOTED.findall(content)} - {b""}


def _that_mention(parts: Iterable[str], contents: Sequence[tuple[str, bytes]]) -> Iterator[bytes]:
    words = [part.encode() for part in parts]
    return (content for _, content in contents if any(word in content for word in words))
