"""The proof `async`: a save holds the state at its call; scripts with one planted mistake are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from .test_prove import Validate, place, validate  # noqa: F401 - fixtures

CALL = """dcp.async_save(
                state_of(model, optimizer, step), checkpoint_id=FOLDER / f"step-{step}", process_group=group
            )"""
AWAITED = "            if saving is not None:\n                saving.result()\n"
MAIN = "\n\ndef main():\n"
LAZY = '''
class Lazy(dcp.staging.AsyncStager):
    """Keeps what it is given, and copies nothing."""

    _synchronize_after_execute = False

    def stage(self, state_dict):
        return state_dict
'''
SHARED = '''
class Shared(dcp.staging.AsyncStager):
    """Copies to memory that all saves share."""

    _synchronize_after_execute = False
    memory = None

    def stage(self, state_dict):
        copied = copy.deepcopy(state_dict)
        if Shared.memory is None:
            Shared.memory = copied
        for key, value in copied["weights"].items():
            Shared.memory["weights"][key].copy_(value)
        copied["weights"] = Shared.memory["weights"]
        return copied
'''


def edited(script: Path, *edits: tuple[str, str]) -> Path:
    for old, new in edits:
        text = script.read_text()
        assert old in text, old
        script.write_text(text.replace(old, new))
    return script


def proof(result: tuple[int, dict[str, Any], str], code: int, status: str) -> dict[str, Any]:
    assert (result[0], result[1]["async"]["status"]) == (code, status), result
    found: dict[str, Any] = result[1]["async"]
    return found


@pytest.mark.slow
def test_a_save_holds_the_state_at_its_call_however_late_it_is_written(validate: Validate, place: Path) -> None:  # noqa: F811
    found = proof(validate(place / "in_background.py", "--prove", "async"), 0, "pass")
    figures = found["figures"]
    assert (figures["save_at_step"], figures["steps_meanwhile"]) == (6, 3), "until the next save awaits this one"
    assert figures["tensors"] >= 6 + 3 + 3 * 6, "weights, buffers, and three tensors of optimizer state a weight"
    assert all(code != 0 for code in figures["exit_codes_when_saves_fail"])


@pytest.mark.slow
def test_a_copy_in_the_background_that_is_awaited_is_right(validate: Validate, place: Path) -> None:  # noqa: F811
    script = background_copy(place / "in_background.py", awaited=True)
    assert proof(validate(script, "--prove", "async"), 0, "pass")["figures"]["steps_meanwhile"] == 3


@pytest.mark.matrix
@pytest.mark.slow
def test_a_copy_in_the_background_that_nobody_awaits_is_of_a_later_step(validate: Validate, place: Path) -> None:  # noqa: F811
    script = background_copy(place / "in_background.py", awaited=False)
    assert "what step 7 left" in proof(validate(script, "--prove", "async"), 1, "fail")["reason"]


def background_copy(script: Path, *, awaited: bool) -> Path:
    """The script with a stager that copies in a thread of its own; `awaited`: before the next step changes anything."""
    options = "use_pinned_memory=False, use_shared_memory=False, use_async_staging=True, use_non_blocking_copy=False"
    imported = "import torch.distributed.checkpoint as dcp\n"
    call = CALL.replace("group\n", "group, async_stager=stager\n")
    wait = "            response.staging_completion.result()\n" if awaited else ""
    return edited(
        script,
        (imported, imported + "from torch.distributed.checkpoint import staging\n"),
        ("    step = 0\n", f"    step = 0\n    stager = staging.DefaultStager(staging.StagingOptions({options}))\n"),
        (f"saving = {CALL}", f"response = {call}\n{wait}            saving = response.upload_completion"),
    )


@pytest.mark.matrix
@pytest.mark.slow
@pytest.mark.parametrize(
    ("edits", "words"),
    [
        (
            [(MAIN, LAZY + MAIN), ("process_group=group", "process_group=group, async_stager=Lazy()")],
            ["what step 9 left", "moments.state."],
        ),
        (
            [
                (MAIN, SHARED + MAIN),
                ("import os\n", "import copy\nimport os\n"),
                ("process_group=group", 'process_group=dist.new_group(backend="gloo"), async_stager=Shared()'),
                (AWAITED, ""),
            ],
            ["what step 9 left", "weights."],
        ),
        (
            [
                ("saving.result()", "concurrent.futures.wait([saving])"),
                ("import os\n", "import concurrent.futures\nimport os\n"),
            ],
            ["nobody looked at the future"],
        ),
    ],
    ids=["a stager that keeps references", "staging memory shared by two saves", "a future that is never asked"],
)
def test_a_planted_mistake_is_refused(
    validate: Validate,  # noqa: F811
    place: Path,  # noqa: F811
    edits: list[tuple[str, str]],
    words: list[str],
) -> None:
    script = edited(place / "in_background.py", *edits)
    reason = proof(validate(script, "--prove", "async"), 1, "fail")["reason"]
    assert all(word in reason for word in words), reason


@pytest.mark.slow
def test_a_script_whose_loop_stands_still_while_it_saves_is_passed_over(validate: Validate, place: Path) -> None:  # noqa: F811
    blocking = proof(validate(place / "by_helpers.py", "--prove", "async"), 2, "skip")
    assert "saves by dcp.save only" in blocking["reason"]
    script = edited(place / "in_background.py", (CALL, CALL + "\n            saving.result()"))
    assert "waits for each save" in proof(validate(script, "--prove", "async"), 2, "skip")["reason"]
