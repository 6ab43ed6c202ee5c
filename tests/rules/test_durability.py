"""What keeps the last whole checkpoint whole, and when state is taken, over traces written by hand."""

from __future__ import annotations

import pytest
from pytorch_fsdp2_dcp.validate.events import (
    AsyncSaved,
    Awaited,
    Backward,
    Choice,
    DirectoryRemoved,
    Escaped,
    FilesMoved,
    ForwardEntered,
    GradientsCleared,
    Location,
    OptimizerBuilt,
    Origin,
    PointerWritten,
    Ref,
    Saved,
    StateApplied,
    StateTaken,
    Stepped,
    Via,
)

from .traces import FUTURE, MODEL, OPTIMIZER, OTHER, STATE, Step, does, found

STEPPED = does(Stepped, optimizer=OPTIMIZER)


@pytest.mark.parametrize(
    "first, second, expected",
    [
        ({"target": "c"}, {"target": "c"}, [("FS609", 3)]),
        ({"place": "<7>"}, {"place": "<7>"}, [("FS609", 3)]),
        ({"target": "c/1"}, {"target": "c/2"}, []),
        ({"place": "<7>"}, {"place": "<8>"}, []),
        ({}, {}, []),
    ],
)
def test_a_directory_is_saved_to_once(first: dict[str, str], second: dict[str, str], expected: list[object]) -> None:
    assert found(does(Saved, **first), STEPPED, does(Saved, **second)) == expected
    later = (does(AsyncSaved, future=FUTURE, **second), does(Awaited, future=FUTURE))
    assert found(does(Saved, **first), STEPPED, *later) == expected


def test_what_is_moved_away_and_what_is_of_one_step_are_not_lost() -> None:
    saved = does(Saved, target="c")
    assert found(saved, STEPPED, does(FilesMoved), saved) == []
    assert found(STEPPED, saved, saved) == []


@pytest.mark.parametrize("replaces", [True, False, None])
def test_a_run_shows_whether_a_checkpoint_is_there(replaces: bool | None) -> None:
    origin: Origin = "probe"
    steps = (does(Saved, target="c", replaces=False), STEPPED, does(Saved, target="c", replaces=replaces))
    assert found(*steps, origin=origin) == ([("FS609", 3)] if replaces else [])


# --- state that is taken while there are gradients ---

BUILT = does(OptimizerBuilt, optimizer=OPTIMIZER, cls="AdamW", modules=(MODEL,))
ENTERED = does(ForwardEntered, module=MODEL, sharded=True)
TAKEN = does(StateTaken, of=(OPTIMIZER,), state=STATE, via=Via.HELPER)


def empty(*steps: Step) -> bool:
    return "FS612" in [code for code, _ in found(*steps)]


def test_state_is_not_created_while_there_are_gradients() -> None:
    assert empty(BUILT, ENTERED, does(Backward), TAKEN)
    assert empty(BUILT, ENTERED, does(Backward), TAKEN, STEPPED)
    assert not empty(BUILT, ENTERED, TAKEN, does(Backward))


@pytest.mark.parametrize(
    "between",
    [
        STEPPED,
        does(GradientsCleared, of=OPTIMIZER),
        does(GradientsCleared, of=MODEL),
        does(StateApplied, to=(OPTIMIZER,)),
        does(Escaped, of=OPTIMIZER),
    ],
)
def test_it_may_be_there_or_the_gradients_gone(between: Step) -> None:
    assert not empty(BUILT, ENTERED, does(Backward), between, TAKEN)


def test_it_may_have_been_created_before() -> None:
    assert not empty(BUILT, TAKEN, ENTERED, does(Backward), TAKEN)
    assert empty(BUILT, ENTERED, does(Backward), TAKEN, TAKEN)


def test_gradients_that_may_not_be_there_or_are_of_another_model_do_not_count() -> None:
    branch = Choice(3, True)
    taken = does(StateTaken, of=(OPTIMIZER,), state=STATE, via=Via.HELPER, branch=branch)
    assert not empty(BUILT, ENTERED, does(Backward), taken)
    assert not empty(BUILT, ENTERED, does(Backward, branch=branch), TAKEN)
    assert not empty(BUILT, does(ForwardEntered, module=OTHER, sharded=True), does(Backward), TAKEN)


@pytest.mark.parametrize("of", [{"stateless": True}, {"cls": "torch.optim.Adagrad"}])
def test_some_optimizers_need_no_first_step(of: dict[str, object]) -> None:
    built = does(OptimizerBuilt, **{"optimizer": OPTIMIZER, "cls": "SGD", "modules": (MODEL,), **of})
    assert not empty(built, ENTERED, does(Backward), TAKEN)


# --- what is removed or pointed to before the next is whole ---

OTHER_FUTURE = Ref(63, "later")
AT = {"at": Location("train.py", 1)}
FIRST = does(Saved, target="c/1", **AT)
FLYING = does(AsyncSaved, target="c/2", future=OTHER_FUTURE, **AT)
REMOVED = does(DirectoryRemoved, target="c/1/")


def too_early(*steps: Step) -> list[int]:
    return [line for code, line in found(*steps) if code == "FS610"]


def test_the_newest_whole_checkpoint_is_not_removed_while_the_next_is_written() -> None:
    assert too_early(FIRST, STEPPED, FLYING, REMOVED, does(Awaited, future=OTHER_FUTURE)) == [4]
    assert too_early(FIRST, STEPPED, FLYING, does(Awaited, future=OTHER_FUTURE), REMOVED) == []
    assert too_early(FIRST, STEPPED, does(Saved, target="c/2", **AT), REMOVED) == []
    assert too_early(FIRST, STEPPED, REMOVED, does(Saved, target="c/2", **AT)) == [3]


@pytest.mark.parametrize(
    "steps",
    [
        (FIRST, FLYING, REMOVED),
        (FIRST, STEPPED, REMOVED),
        (FIRST, STEPPED, does(FilesMoved), FLYING, REMOVED),
        (FIRST, STEPPED, FLYING, does(Escaped, of=OTHER_FUTURE), REMOVED),
        (FIRST, STEPPED, FLYING, does(DirectoryRemoved, target="c/0")),
        (FIRST, STEPPED, FLYING, does(DirectoryRemoved)),
        (FIRST, STEPPED, REMOVED, does(Saved, target="other")),
    ],
)
def test_what_may_be_no_loss(steps: tuple[Step, ...]) -> None:
    assert too_early(*steps) == []


def test_directories_are_told_apart_by_what_their_paths_are_made_of() -> None:
    first, removed = does(Saved, pieces=("<1>", "<2>"), **AT), does(DirectoryRemoved, pieces=("<1>", "<2>"))
    assert too_early(first, STEPPED, FLYING, removed) == [4]
    assert too_early(first, STEPPED, FLYING, does(DirectoryRemoved, pieces=("<1>",))) == []


@pytest.mark.parametrize(
    "pieces, early", [(("<9>",), True), (("<1>", "<9>"), True), (("<1>",), False), (("9",), False)]
)
def test_a_pointer_names_a_save_by_what_no_other_save_has(pieces: tuple[str, ...], early: bool) -> None:
    before = does(AsyncSaved, pieces=("<1>", "<8>"), future=FUTURE, **AT)
    saves = (before, does(Awaited, future=FUTURE), does(AsyncSaved, pieces=("<1>", "<9>"), future=OTHER_FUTURE, **AT))
    pointer = does(PointerWritten, pieces=pieces)
    assert too_early(*saves, pointer) == ([4] if early else [])
    assert too_early(*saves, does(Awaited, future=OTHER_FUTURE), pointer) == []
