"""`lint --checklist`: SKILL.md's items, and what is said of each for programs at every stage of the work."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from pytorch_fsdp2_dcp.validate.checklist import WORKFLOWS
from pytorch_fsdp2_dcp.validate.linter import lint_one
from pytorch_fsdp2_dcp.validate.rules import RULES
from pytorch_fsdp2_dcp.validate.rules.base import READER
from pytorch_fsdp2_dcp.validate.sources import Source

from ..commands import SKILL, assert_refused, fsdp2, fsdp2_json
from ..schemas import LINT

PLAIN = """\
import torch
from torch import nn


def main():
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(10):
        loss = model(torch.randn(4, 8)).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "model.pt")


if __name__ == "__main__":
    main()
"""

SHARDED = """\
import signal

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard


def main():
    dist.init_process_group("gloo")
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters())
    signal.signal(signal.SIGTERM, lambda *_: None)
    weights, moments = get_state_dict(model, optimizer)
    state = {"model": weights, "optimizer": moments}
    dcp.load(state, checkpoint_id="step-0")
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)
    for step in range(10):
        model(torch.randn(4, 8)).pow(2).mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    weights, moments = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": moments}, checkpoint_id=f"step-{step}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
"""


def listed(title: str) -> list[str]:
    """The items of one of SKILL.md's lists, each on one line."""
    section = (SKILL / "SKILL.md").read_text().partition(f"\n## {title}")[2].partition("\n## ")[0]
    text = re.search(r"(?:^- \[ \] .*\n(?:      .*\n)*)+", section, re.MULTILINE)
    assert text is not None
    return [" ".join(item.split()) for item in text[0].split("- [ ] ")[1:]]


def statuses(text: str, letter: str) -> dict[int, tuple[str, int | None]]:
    """What is said of each item of a program on standard input, and the line."""
    outcome = lint_one(Source("train.py", None, named=True), text.encode(), workflows=(letter,))
    assert outcome.problem is None
    verdicts = outcome.checklists[letter]
    return {n: (v.status.value, v.at.line if v.at is not None else None) for n, v in enumerate(verdicts, 1)}


def items(folder: Path, *arguments: str) -> dict[int, dict[str, Any]]:
    document = fsdp2_json("lint", *arguments, cwd=folder)
    jsonschema.validate(document, LINT)
    return {entry["item"]: entry for entry in document["checklist"]}


@pytest.mark.parametrize("letter", ["a", "b"])
def test_the_items_are_those_of_the_skill_word_for_word(letter: str) -> None:
    workflow = WORKFLOWS[letter]
    title = f"Workflow {letter.upper()}: {workflow.title}"
    assert [item.text for item in workflow.items] == listed(title)


def test_every_rule_that_an_item_names_in_its_text_breaks_it() -> None:
    for workflow in WORKFLOWS.values():
        for item in workflow.items:
            assert set(re.findall(r"FS\d{3}", item.text)) <= {*item.rules, *item.at_saves}


def test_every_rule_of_the_reader_breaks_an_item() -> None:
    """The last item of A is broken by all; that no rule of training or saving is in that alone, the numbers tell."""
    named = {code for w in WORKFLOWS.values() for item in w.items for code in (*item.rules, *item.at_saves)}
    general = {r.code for r in RULES if READER in r.seen_by} - named
    assert not {code for code in general if code[2] in "2368"}, general


def test_a_copy_that_is_sharded_is_not_the_model_that_is_trained() -> None:
    text = """
import copy, torch, torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
average = copy.deepcopy(model)
for each in (model, average):
    for layer in each:
        fully_shard(layer)
    fully_shard(each)
optimizer = torch.optim.AdamW(model.parameters())
for step in range(10):
    model(torch.ones(8)).sum().backward()
    optimizer.step()
average(torch.ones(8))
"""
    found = statuses(text, "a")
    assert [found[item][0] for item in (2, 3, 5)] == ["done", "done", "done"]
    found = statuses(text.replace("(model, average)", "(average,)"), "a")
    assert [found[item] for item in (2, 3, 5)] == [("missing", 15)] * 3


def test_a_plain_script_gets_a_list_to_work_down() -> None:
    assert statuses(PLAIN, "a") == {
        1: ("missing", None),
        2: ("missing", 6),
        3: ("missing", 6),
        4: ("not-seen", None),
        5: ("missing", 7),
        6: ("done", 9),
        7: ("missing", None),
        8: ("not-seen", None),
        9: ("missing", None),
        10: ("not-seen", None),
    }


def test_a_plain_script_is_told_where_it_saves() -> None:
    found = statuses(PLAIN, "b")
    assert {n: found[n] for n in (1, 3, 6)} == dict.fromkeys((1, 3, 6), ("missing", 13))
    assert {n: found[n][0] for n in (2, 4, 5, 7, 8, 9, 10)} == {
        2: "not-seen",
        4: "not-seen",
        5: "not-seen",
        7: "missing",
        8: "not-seen",
        9: "missing",
        10: "not-seen",
    }


def test_what_is_done_is_ticked_off_with_its_line() -> None:
    found = statuses(SHARDED, "a")
    assert {n: found[n] for n in (1, 3, 5, 6, 8)} == {
        1: ("done", 12),
        3: ("done", 16),
        5: ("done", 17),
        6: ("done", 24),
        8: ("done", 25),
    }
    found = statuses(SHARDED, "b")
    assert {n: found[n] for n in (1, 2, 3, 6, 9)} == {
        1: ("done", 29),
        2: ("done", 21),
        3: ("done", 29),
        6: ("done", 29),
        9: ("done", 18),
    }


@pytest.mark.parametrize(
    ("before", "after", "item", "status"),
    [
        ('"optimizer": moments}, checkpoint', '"x": 1}, checkpoint', 1, "missing"),
        ("    signal.signal(signal.SIGTERM, lambda *_: None)\n", "", 9, "missing"),
        ('    dcp.load(state, checkpoint_id="step-0")\n', "", 7, "missing"),
        ('    dcp.load(state, checkpoint_id="step-0")\n', "", 2, "not-seen"),
        ('{"model": weights, "optimizer": moments}, ', "whatever(), ", 1, "not-seen"),
        ('{"model": weights, "optimizer": moments}, ', "whatever(), ", 3, "not-seen"),
        ("dcp.save(", "dcp.async_save(", 8, "done"),
    ],
)
def test_one_change_changes_one_item(before: str, after: str, item: int, status: str) -> None:
    assert before in SHARDED
    assert statuses(SHARDED.replace(before, after), "b")[item][0] == status


def test_a_library_module_is_missing_nothing() -> None:
    module = (
        "import torch.distributed.checkpoint as dcp\n\n\ndef save(state):\n    dcp.save(state, checkpoint_id='c')\n"
    )
    for letter in ("a", "b"):
        assert "missing" not in {status for status, _ in statuses(module, letter).values()}
    assert statuses(module, "b")[6] == ("done", 5)


def test_a_finding_breaks_its_item_and_the_last_one(tmp_path: Path) -> None:
    early = SHARDED.replace(
        "    for layer in model:\n", "    optimizer = torch.optim.AdamW(model.parameters())\n    for layer in model:\n"
    )
    early = early.replace(
        "    fully_shard(model)\n    optimizer = torch.optim.AdamW(model.parameters())\n", "    fully_shard(model)\n"
    )
    (tmp_path / "train.py").write_text(early)
    found = items(tmp_path, "train.py", "--checklist", "a")
    assert (found[5]["status"], found[5]["rules"], found[5]["at"]) == (
        "broken",
        ["FS401"],
        {"file": "train.py", "line": 14},
    )
    assert (found[10]["status"], found[10]["rules"]) == ("broken", ["FS401"])
    assert found[3]["status"] == "done"
    (tmp_path / "train.py").write_text(
        early.replace("parameters())\n    for", "parameters())  # fsdp2: ignore[FS401] a test\n    for")
    )
    assert items(tmp_path, "train.py", "--checklist", "a")[5]["status"] == "done"


def test_a_guard_breaks_the_item_of_the_save_only_around_a_save(tmp_path: Path) -> None:
    guarded = SHARDED.replace("    dcp.save(", "    if dist.get_rank() == 0:\n        dcp.save(")
    (tmp_path / "train.py").write_text(guarded)
    assert items(tmp_path, "train.py", "--checklist", "b")[6]["rules"] == ["FS102"]
    barrier = SHARDED.replace(
        "    dist.destroy", "    if dist.get_rank() == 0:\n        dist.barrier()\n    dist.destroy"
    )
    (tmp_path / "train.py").write_text(barrier)
    assert items(tmp_path, "train.py", "--checklist", "b")[6]["status"] == "done"
    assert items(tmp_path, "train.py", "--checklist", "a")[9]["rules"] == ["FS102"]


def test_the_text_names_each_item_and_the_exit_code_says_whether_there_is_work(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PLAIN)
    process = fsdp2("lint", "train.py", "--checklist", "a", cwd=tmp_path)
    lines = process.stdout.splitlines()
    assert process.returncode == 1
    assert lines[:2] == ["1 file read: nothing found", ""]
    assert lines[2] == ("Workflow A, retrofit FSDP2 into a training script: train.py: 1 done, 6 missing, 3 not seen")
    assert lines[11:13] == [
        "[ ]  5. Build the optimizer now, then the scheduler",
        "        missing: train.py:7: built here; it must come after sharding",
    ]
    assert fsdp2("lint", "train.py", "--checklist", "a", "--exit-zero", cwd=tmp_path).returncode == 0
    (tmp_path / "train.py").write_text(SHARDED)
    assert fsdp2("lint", "train.py", "--checklist", "a", cwd=tmp_path).returncode == 0


def test_a_folder_shows_its_programs(tmp_path: Path) -> None:
    (tmp_path / "helpers.py").write_text(
        "import torch.distributed.checkpoint as dcp\n\n\ndef f(x):\n    dcp.save(x, checkpoint_id='c')\n"
    )
    assert_refused(fsdp2("lint", ".", "--checklist", "b", cwd=tmp_path), "none of these files is a program")
    (tmp_path / "train.py").write_text(SHARDED)
    document = fsdp2_json("lint", ".", "--checklist", "all", cwd=tmp_path)
    assert {(entry["file"], entry["workflow"]) for entry in document["checklist"]} == {
        ("train.py", "a"),
        ("train.py", "b"),
    }


@pytest.mark.parametrize("options", [["--fix"], ["--diff"], ["--format", "sarif"]])
def test_a_checklist_stands_alone(tmp_path: Path, options: list[str]) -> None:
    (tmp_path / "train.py").write_text(PLAIN)
    assert_refused(fsdp2("lint", "train.py", "--checklist", "a", *options, cwd=tmp_path), "--checklist")
