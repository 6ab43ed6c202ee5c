"""What a fix is worth when the program runs: each rule's bad.py, fixed, does on two ranks what its good.py does."""

from __future__ import annotations

from pathlib import Path

import pytest
from pytorch_fsdp2_dcp.validate.explain import PAGES
from pytorch_fsdp2_dcp.validate.fixes import FIXERS
from pytorch_fsdp2_dcp.validate.rules import RULES
from pytorch_fsdp2_dcp.validate.rules.base import Rule

from ..rules.test_pairs import check, claims, folder, run
from .fixed import fix

FIXED = [rule for rule in RULES if rule.code in FIXERS and len(claims(rule)) == 2]


@pytest.mark.slow
@pytest.mark.parametrize("rule", FIXED, ids=lambda rule: rule.code)
def test_a_fixed_program_behaves(rule: Rule, tmp_path: Path) -> None:
    good = claims(rule)[1]
    assert good.program == "good.py"
    (text,) = fix(folder(rule) / "bad.py").texts
    script = tmp_path / "fixed.py"
    script.write_text(text.text)
    finished = run(script, good.outcome, tmp_path)
    check(good.outcome, finished)
    assert good.prints in finished.ends[0].output


def test_every_fixer_is_of_a_rule() -> None:
    assert set(FIXERS) <= {rule.code for rule in RULES}
    assert {path.name[:5] for path in PAGES.iterdir()} >= set(FIXERS)
