"""What `--fix` makes of a program, in this process."""

from __future__ import annotations

from pathlib import Path

from pytorch_fsdp2_dcp.validate.findings import Finding
from pytorch_fsdp2_dcp.validate.fixing import Fixed, Fixing, Program
from pytorch_fsdp2_dcp.validate.linter import Outcome, lint
from pytorch_fsdp2_dcp.validate.sources import find_sources


def findings(outcomes: list[Outcome], code: str | None = None) -> list[Finding]:
    """All findings, or those of one rule."""
    assert [o.problem for o in outcomes if o.problem] == []
    return [f for outcome in outcomes for f in outcome.findings if code in (None, f.code)]


def fix(path: Path, code: str | None = None, unsafe: bool = True) -> Fixed:
    """Fix a file, or the files of a folder; nothing is written."""
    sources = list(find_sources([str(path)]))
    outcomes = lint([(source, None) for source in sources])
    fixing = Fixing([Program(s, None, o) for s, o in zip(sources, outcomes, strict=True)])
    return fixing.run(lambda now: findings(now, code), unsafe)


def text_after(path: Path, code: str | None = None, unsafe: bool = True) -> str:
    """The text of a file after fixing, with line ends as they are."""
    done = fix(path, code, unsafe)
    (text,) = [t.text for t in done.texts] or [path.read_bytes().decode()]
    return text
