"""The reasons for which the rules about what a checkpoint leaves out are silent, over traces written by hand."""

from __future__ import annotations

import pytest
from pytorch_fsdp2_dcp.validate.events import (
    Backward,
    BatchesPassedOver,
    Entry,
    ForwardEntered,
    Kind,
    Loaded,
    LoaderBuilt,
    OptimizerBuilt,
    Ref,
    Saved,
    Via,
)
from pytorch_fsdp2_dcp.validate.linter import lint_one
from pytorch_fsdp2_dcp.validate.rules.unjudged import unjudged
from pytorch_fsdp2_dcp.validate.sources import Source

from .traces import MODEL, OPTIMIZER, OTHER, Step, does, entry, trace

WEIGHTS, MOMENTS = entry(Kind.MODEL, MODEL, Via.HELPER), entry(Kind.OPTIMIZER, OPTIMIZER, Via.HELPER)
LOADER = Ref(51, "loader")
BUILT = does(OptimizerBuilt, optimizer=OPTIMIZER, cls="AdamW", modules=(MODEL,), given=("model",))
RESUMED = does(Loaded, entries=(WEIGHTS, MOMENTS))
SAVED = does(Saved, entries=(WEIGHTS, MOMENTS), underway=(LOADER,))


def reasons(*steps: Step) -> list[tuple[int, str]]:
    return [(note.at.line, note.text) for note in unjudged((trace(*steps),))]


def test_what_is_known_needs_no_reason() -> None:
    forward = does(ForwardEntered, module=MODEL, sharded=True, drops=False)
    assert reasons(BUILT, RESUMED, forward, does(Backward), SAVED) == []


@pytest.mark.parametrize(
    "entries, what",
    [
        ((WEIGHTS, MOMENTS, Entry(key="best.*", kind=Kind.UNKNOWN)), "what `best.*` holds"),
        (None, "what is in this checkpoint"),
    ],
)
def test_what_is_left_out_may_be_in_what_is_not_known(entries: tuple[Entry, ...] | None, what: str) -> None:
    ((line, text),) = reasons(BUILT, RESUMED, does(Backward), does(Saved, entries=entries))
    assert line == 4
    assert text.startswith(what)
    assert "FS605" in text
    assert reasons(BUILT, RESUMED, does(Saved, entries=entries)) == []  # nothing is trained


@pytest.mark.parametrize("per_rank, expected", [(None, [3]), (True, []), (False, [])])
def test_dropout_by_a_setting_needs_torchs_own_generators(per_rank: bool | None, expected: list[int]) -> None:
    drawn = Entry(key="rng", kind=Kind.RNG, per_rank=per_rank)
    forward = does(ForwardEntered, module=MODEL, sharded=True)
    saved = does(Saved, entries=(WEIGHTS, MOMENTS, drawn))
    assert [line for line, _ in reasons(BUILT, RESUMED, forward, does(Backward), saved)] == expected
    assert reasons(BUILT, forward, does(Backward), saved) == []  # nothing is resumed


@pytest.mark.parametrize("loader, expected", [(LOADER, [1]), (None, [])])
def test_batches_may_be_passed_over_by_a_count_that_begins_again(loader: Ref | None, expected: list[int]) -> None:
    built = does(LoaderBuilt, loader=LOADER, rewinds=True)
    passed = does(BatchesPassedOver, loader=loader)
    assert [line for line, _ in reasons(built, BUILT, RESUMED, passed, does(Backward), SAVED)] == expected


def test_a_model_beside_the_one_that_is_trained_may_be_an_average() -> None:
    steps = (BUILT, RESUMED, does(ForwardEntered, module=OTHER, sharded=True, drops=False), does(Backward))
    assert [line for line, _ in reasons(*steps, SAVED)] == [3]
    kept = does(Saved, entries=(WEIGHTS, MOMENTS, entry(Kind.MODEL, OTHER, Via.HELPER)))
    assert reasons(*steps, kept) == []


def test_a_lint_tells_them() -> None:
    text = "import library\nimport torch.distributed.checkpoint as dcp\n"
    text += "dcp.save(library.state(), checkpoint_id='c')\nlibrary.loss().backward()\n"
    notes = lint_one(Source("train.py", None, named=True), text.encode()).notes
    assert [note.at.line for note in notes if "not judged" in note.text] == [3]
