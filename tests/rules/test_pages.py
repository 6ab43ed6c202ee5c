"""Every rule has its page and its pair, and they agree with its class."""

from __future__ import annotations

import ast
import difflib
import re

import pytest
from pytorch_fsdp2_dcp.validate.explain import PAGES, read_page
from pytorch_fsdp2_dcp.validate.rules import RULES
from pytorch_fsdp2_dcp.validate.rules.base import PROBE, Rule

from .test_pairs import claims, folder

SECTIONS = [
    "What it does",
    "Why is this bad?",
    "Example",
    "Use instead",
    "How it shows when it runs",
    "What it assumes",
    "References",
]
BOOKKEEPING = {"FS001"}  # what the linter says of comments to itself; no rule over traces

every_rule = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)


def test_codes_and_names_are_unique_and_in_order() -> None:
    codes = [rule.code for rule in RULES]
    assert codes == sorted(set(codes))
    assert len({rule.name for rule in RULES}) == len(RULES)


def test_every_folder_is_of_a_rule() -> None:
    folders = {path.name for path in PAGES.iterdir() if path.name[:5] not in BOOKKEEPING}
    assert folders == {folder(rule).name for rule in RULES}


@every_rule
def test_the_page_agrees_with_the_class(rule: Rule) -> None:
    page = read_page(folder(rule) / "page.md")
    assert (page.code, page.name, page.severity) == (rule.code, rule.name, rule.severity.value)
    assert set(page.seen_by) == rule.seen_by
    assert f" · clause {rule.clause} of the contract · " in page.text
    assert 1 <= rule.clause <= 12
    assert re.findall(r"^## (.*)$", page.text, re.MULTILINE) == SECTIONS
    assert page.summary.startswith("Finds ")


@every_rule
def test_the_snippets_of_the_page_are_python(rule: Rule) -> None:
    text = (folder(rule) / "page.md").read_text()
    snippets = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(snippets) == 2
    for snippet in snippets:
        ast.parse(snippet)


@every_rule
def test_the_table_tells_of_both_programs_where_they_can_run(rule: Rule) -> None:
    """Some mistakes that only the reader sees need an accelerator, or another torch, to show."""
    told = [claim.program for claim in claims(rule)]
    assert told == ["bad.py", "good.py"] or (told == [] and PROBE not in rule.seen_by)


@every_rule
def test_the_pair_is_short_and_differs_in_the_mistake_alone(rule: Rule) -> None:
    bad, good = ((folder(rule) / name).read_text().splitlines() for name in ("bad.py", "good.py"))
    assert 15 <= len(bad) <= 65
    assert bad[0] != good[0], "the first line says what the program shows"
    changed = [line for line in difflib.ndiff(bad[1:], good[1:]) if line[0] in "+-"]
    assert 1 <= len(changed) <= 10, changed
