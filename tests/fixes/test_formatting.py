"""However a program is written: a fix mends its finding, keeps the rest byte for byte, and leaves no more to do."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st
from pytorch_fsdp2_dcp.validate.explain import PAGES
from pytorch_fsdp2_dcp.validate.fixes import FIXERS
from pytorch_fsdp2_dcp.validate.fixes.proposal import edited, edits_between
from pytorch_fsdp2_dcp.validate.fixing import Fixed, Fixing, Program
from pytorch_fsdp2_dcp.validate.linter import lint_one
from pytorch_fsdp2_dcp.validate.sources import Source

from ..rules.test_fixtures import FIXTURES
from .fixed import findings

SEEDS = [next(PAGES.glob(f"{code}-*/bad.py")).read_text() for code in FIXERS]
SEEDS += [path.read_text() for code in FIXERS for path in sorted(FIXTURES.glob(f"{code}*.py"))]

quick = settings(max_examples=25, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
thorough = settings(quick, max_examples=600)


def fixed(content: bytes) -> Fixed:
    """What fixing a program on standard input gives, so that no file is written or read."""
    source = Source("program.py", None, named=True)
    outcome = lint_one(source, content)
    return Fixing([Program(source, None, outcome)]).run(findings, unsafe=True)


@st.composite
def written(draw: st.DrawFn) -> bytes:
    """A program with a mistake, in one of the ways that people and editors write it."""
    text = draw(st.sampled_from(SEEDS))
    lines = text.splitlines()
    ends = [t.start[0] for t in tokenize.generate_tokens(io.StringIO(text).readline) if t.type == tokenize.NEWLINE]
    for line in draw(st.sets(st.sampled_from(ends), max_size=6)):
        if lines[line - 1].endswith(":"):
            continue
        lines[line - 1] += draw(st.sampled_from(["  # why", " # é ∑", ";", "\t", "  # type: ignore"]))
    starts = [n.lineno for n in ast.walk(ast.parse(text)) if isinstance(n, ast.stmt)]
    for line in sorted(draw(st.sets(st.sampled_from(starts), max_size=6)), reverse=True):
        if not re.match(r"\s*(elif|else|except|finally)\b", lines[line - 1]):
            indent = re.match(r"\s*", lines[line - 1])
            assert indent is not None
            lines.insert(
                line - 1, draw(st.sampled_from(["", indent[0] + "# a remark", indent[0] + "é = '''\n  ß'''", "\x0c"]))
            )
    text = "\n".join(lines) + draw(st.sampled_from(["\n", "", "\n\n", "\n# end"]))
    if draw(st.booleans()):
        text = re.sub(r"^( {4})+", lambda m: "\t" * (len(m[0]) // 4), text, flags=re.MULTILINE)
    try:
        ast.parse(text)
    except SyntaxError:
        reject()
    mark = draw(st.sampled_from([b"", b"\xef\xbb\xbf"]))
    return mark + text.replace("\n", draw(st.sampled_from(["\n", "\r\n", "\r"]))).encode()


def comments(content: bytes) -> Counter[str]:
    text = content.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return Counter(t.string for t in tokens if t.type == tokenize.COMMENT)


def check(content: bytes) -> None:
    outcome = lint_one(Source("program.py", None, named=True), content)
    done = fixed(content)
    (after,) = [t.encoded() for t in done.texts] or [content]
    ast.parse(after.decode("utf-8-sig"))
    left = Counter(f.code for f in findings(done.outcomes))
    mended = Counter(f.finding.code for f in done.fixes)
    assert left + mended <= Counter(f.code for f in outcome.findings), "one guard may mend several findings"
    assert Counter(f.code for f in findings([lint_one(Source("program.py", None, named=True), after)])) == left
    assert fixed(after).texts == [], "a second run finds nothing to do"
    assert comments(after) == comments(content)
    assert after[:3].startswith(b"\xef\xbb\xbf") == content.startswith(b"\xef\xbb\xbf")
    for ends in (b"\r\n", b"\r", b"\n"):
        rest = after.replace(b"\r\n", b"") if ends != b"\r\n" else after
        before = content.replace(b"\r\n", b"") if ends != b"\r\n" else content
        assert (ends in rest) == (ends in before), ends
    assert after.endswith((b"\n", b"\r")) == content.endswith((b"\n", b"\r"))


@pytest.mark.slow
@quick
@given(written())
def test_a_fix_holds_however_the_program_is_written(content: bytes) -> None:
    check(content)


@pytest.mark.matrix
@pytest.mark.slow
@thorough
@given(written())
def test_many_ways_of_writing(content: bytes) -> None:
    check(content)


@pytest.mark.slow
@pytest.mark.parametrize("content", [text.encode() for text in SEEDS], ids=range(len(SEEDS)))
def test_the_seeds_are_fixed_at_all(content: bytes) -> None:
    check(content)


def test_each_bad_program_is_right_after_its_fix() -> None:
    for text in SEEDS[: len(FIXERS)]:
        assert findings(fixed(text.encode()).outcomes) == []


@given(st.text("ab\n\r", max_size=12), st.text("ab\n\r", max_size=12))
def test_edits_lead_from_one_text_to_the_other(old: str, new: str) -> None:
    assert edited(old, edits_between(old, new)) == new


@pytest.mark.matrix
@pytest.mark.slow
@pytest.mark.parametrize("path", sorted(FIXTURES.glob("*.py")), ids=lambda path: path.stem)
def test_no_fix_leaves_a_fixture_worse(path: Path) -> None:
    """Of all rules at once: what is left after fixing was there before."""
    check(path.read_bytes())
