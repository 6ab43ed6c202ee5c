"""Each rule's bad.py and good.py: what the observers find in them, and that they do what the rule's page says."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import NamedTuple

import pytest
from pytorch_fsdp2_dcp.validate.explain import PAGES
from pytorch_fsdp2_dcp.validate.launch import launcher
from pytorch_fsdp2_dcp.validate.launch.job import Job, RankEnd, Run
from pytorch_fsdp2_dcp.validate.probe.merge import merge
from pytorch_fsdp2_dcp.validate.reader import read
from pytorch_fsdp2_dcp.validate.rules import RULES, judge
from pytorch_fsdp2_dcp.validate.rules.base import PROBE, READER, Rule

HANG = 12.0  # seconds after which a program that should hang has done so; starting the ranks takes two
PATIENCE = 120.0  # for one that should end


class Claim(NamedTuple):
    """One row of a page's table."""

    program: str
    outcome: str
    prints: str


def folder(rule: Rule) -> Path:
    return PAGES / f"{rule.code}-{rule.name}"


def claims(rule: Rule) -> list[Claim]:
    """The rows of the table under "How it shows when it runs"."""
    text = (folder(rule) / "page.md").read_text()
    section = text.partition("## How it shows when it runs\n")[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line[:1] == "|"]
    assert all(len(row) == 3 for row in rows), section
    return [Claim(*row) for row in rows[2:]]


def run(script: Path, outcome: str, scratch: Path) -> Run:
    work, records = scratch / "work", scratch / "records"
    work.mkdir()
    records.mkdir()
    # A program that hangs leaves its folder behind; the name is short, for processes make sockets there.
    with tempfile.TemporaryDirectory(prefix="fsdp2-", ignore_cleanup_errors=True) as temporary:
        job = Job(
            script=script,
            args=(),
            nproc=2,
            cwd=work,
            scratch=records,
            deadline=HANG if "hangs" in outcome else PATIENCE,
            env={"TMPDIR": temporary},
        )
        return launcher("warm").run(job)


def check(outcome: str, finished: Run) -> None:
    either, _, other = outcome.partition(" or ")
    if other:  # a race, which it loses in one of two ways
        check(either if finished.hung == (either == "hangs") else other, finished)
    elif outcome == "hangs":
        assert finished.hung, finished.ends
    elif raised := re.fullmatch(r"raises (\w+)", outcome):
        assert not finished.hung
        assert any((end.error or "").startswith(f"{raised[1]}:") for end in finished.ends), finished.ends
    else:
        assert outcome == "exits 0", (
            f"a page's outcome is `exits 0`, `raises <Type>`, `hangs` or two of these, not `{outcome}`"
        )
        assert finished.succeeded, finished.ends


@pytest.mark.parametrize("rule", [r for r in RULES if READER in r.seen_by], ids=lambda rule: rule.code)
def test_the_reader_finds_the_mistake_and_nothing_else(rule: Rule) -> None:
    assert [f.code for f in judge(read(folder(rule) / "bad.py").traces)] == [rule.code]
    assert judge(read(folder(rule) / "good.py").traces) == []


ATTEMPTS = 3  # where ranks race, a mistake shows nearly every time; once is enough to see that it can

RUNS = [(rule, claim) for rule in RULES for claim in claims(rule)]


@pytest.mark.slow
@pytest.mark.matrix
@pytest.mark.parametrize(("rule", "claim"), RUNS, ids=[f"{rule.code}-{claim.program}" for rule, claim in RUNS])
def test_it_runs_as_its_page_says_and_the_probe_sees_it_where_it_can(rule: Rule, claim: Claim, tmp_path: Path) -> None:
    bad = claim.program == "bad.py"
    for left in reversed(range(ATTEMPTS if bad and claim.outcome != "exits 0" else 1)):
        (place := tmp_path / str(left)).mkdir()
        finished = run(folder(rule) / claim.program, claim.outcome, place)
        try:
            check(claim.outcome, finished)
            assert claim.prints in finished.ends[0].output
            if not bad or PROBE in rule.seen_by:  # else what comes of the mistake may be for another rule
                assert [f.code for f in judge(merge(finished))] == ([rule.code] if bad else [])
            break
        except AssertionError:
            if not left:
                raise


def test_a_page_that_claims_too_much_fails(tmp_path: Path) -> None:
    """The check that the pages rest on tells outcomes apart."""
    job = Job(script=tmp_path, args=(), nproc=1, cwd=tmp_path, scratch=tmp_path, deadline=1)
    ends = {
        "exits 0": RankEnd(rank=0, code=0),
        "raises TypeError": RankEnd(rank=0, code=1, error="TypeError: no"),
        "hangs": RankEnd(rank=0, code=None),
    }
    for true, end in ends.items():
        for claimed in ends:
            finished = Run(job=job, ends=(end,), records=tmp_path, seconds=1.0)
            if claimed == true:
                check(claimed, finished)
            else:
                with pytest.raises(AssertionError):
                    check(claimed, finished)
