"""What the pages name between backticks exists, with those parameters, in the installed torch."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pytorch_fsdp2_dcp.validate.rules import RULES

from .pages import REFERENCES, Page, pages
from .symbols import spans, unknown

PAGES = [page for page in pages() if page.path.stem != "torch-versions"]  # that one has a test of its own


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.path.stem)
def test_every_name_is_known(page: Page) -> None:
    problems = [f"`{span}`: {problem}" for span in spans(page) if (problem := unknown(page, span))]
    assert problems == []


@pytest.mark.parametrize(
    "span",
    [
        "dcp.safe", "fully_shard(module, shard_grad=True)", "dcp.save(value, path=path)", "FSDPModule.no_sync",
        "sharding_strategy_of=1", "StateDictOptions(full=True)", "torch.distributed.fsdp.fully_sharded",
    ],
)  # fmt: skip
def test_a_name_or_keyword_that_torch_does_not_have_is_found(span: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"# Page\n\nSee `{span}`.\n")
    assert unknown(Page(page), span) is not None


@pytest.mark.parametrize(
    "span",
    [
        "dcp.save(value, checkpoint_id=path)", "reshard_after_forward", "reshard_after_forward=False",
        "model.unshard()", "StateDictOptions(full_state_dict=True, cpu_offload=True)", "LOCAL_RANK",
        "FSDPModule.reshard", ".metadata",
    ],
)  # fmt: skip
def test_what_is_there_is_known(span: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"# Page\n\nSee `{span}`.\n")
    assert unknown(Page(page), span) is None


def test_every_rule_that_a_page_names_has_a_page() -> None:
    known = {rule.code for rule in RULES} | {folder.name[:5] for folder in (REFERENCES / "rules").iterdir()}
    named = {code for page in PAGES for code in re.findall(r"\bFS\d{3}\b", page.text)}
    assert len(named) > 50
    assert named <= known, sorted(named - known)
