"""What is in no checkpoint, over traces written by hand."""

from __future__ import annotations

import pytest
from pytorch_fsdp2_dcp.validate.events import (
    AsyncSaved,
    Backward,
    BatchesDrawn,
    BatchesPassedOver,
    Entry,
    Escaped,
    Form,
    ForwardEntered,
    Kind,
    Loaded,
    LoaderBuilt,
    RandomStateTaken,
    Ref,
    Saved,
    SchedulerBuilt,
    SchedulerStepped,
    Seeded,
    StateApplied,
    StateTaken,
    Stepped,
    TorchSaved,
    TrainingLoop,
    Via,
)

from .traces import FUTURE, MODEL, OPTIMIZER, STATE, Step, does, entry, found

SCHEDULER = Ref(31, "scheduler")
WEIGHTS = entry(Kind.MODEL, MODEL, Via.HELPER)
MOMENTS = entry(Kind.OPTIMIZER, OPTIMIZER, Via.HELPER)
COUNT = entry(Kind.SCHEDULER, SCHEDULER, Via.METHOD)
STEP = Entry(key="step", kind=Kind.VALUE)
UNKNOWN = Entry(key="*", kind=Kind.UNKNOWN)

BUILT = does(SchedulerBuilt, scheduler=SCHEDULER, optimizer=OPTIMIZER)
STEPPED = does(Stepped, optimizer=OPTIMIZER)
COUNTED = does(SchedulerStepped, scheduler=SCHEDULER)


def saves(*entries: Entry) -> Step:
    return does(Saved, entries=entries)


def loads(*entries: Entry) -> Step:
    return does(Loaded, entries=entries)


def codes(*steps: Step) -> list[tuple[str, int]]:
    return [one for one in found(*steps) if one[0] in ("FS605", "FS608")]


# --- the scheduler ---


def test_a_scheduler_that_is_not_saved_begins_again() -> None:
    assert codes(BUILT, loads(WEIGHTS, MOMENTS), STEPPED, COUNTED, saves(WEIGHTS, MOMENTS, STEP)) == [("FS605", 5)]


@pytest.mark.parametrize(
    "more",
    [
        saves(WEIGHTS, MOMENTS, COUNT),
        saves(WEIGHTS, MOMENTS, UNKNOWN),
        saves(entry(Kind.SCHEDULER, None, Via.VALUE)),
        does(Saved),
        does(AsyncSaved, future=FUTURE),
        does(Escaped, of=SCHEDULER),
        does(StateTaken, of=(SCHEDULER,), state=STATE, via=Via.METHOD),
        does(StateApplied, to=(SCHEDULER,)),
    ],
)
def test_it_may_be_kept_in_another_way(more: Step) -> None:
    ways = codes(BUILT, loads(WEIGHTS, MOMENTS), STEPPED, COUNTED, saves(WEIGHTS, MOMENTS), more)
    assert "FS605" not in [code for code, _ in ways]


def test_only_a_run_that_is_resumed_needs_it() -> None:
    assert codes(BUILT, STEPPED, COUNTED, saves(WEIGHTS, MOMENTS)) == []
    assert codes(BUILT, loads(WEIGHTS), STEPPED, COUNTED, saves(WEIGHTS, MOMENTS)) == []
    assert codes(BUILT, loads(WEIGHTS, MOMENTS), STEPPED, COUNTED, saves(WEIGHTS)) == []


def test_one_that_never_steps_has_no_count() -> None:
    assert codes(BUILT, loads(WEIGHTS, MOMENTS), STEPPED, saves(WEIGHTS, MOMENTS)) == []


def test_one_that_is_built_after_the_load_may_be_built_of_what_was_loaded() -> None:
    assert codes(loads(WEIGHTS, MOMENTS), BUILT, STEPPED, COUNTED, saves(WEIGHTS, MOMENTS)) == []


def test_one_that_is_stepped_before_training_goes_on_catches_up() -> None:
    assert codes(BUILT, loads(WEIGHTS, MOMENTS), COUNTED, STEPPED, COUNTED, saves(WEIGHTS, MOMENTS)) == []


@pytest.mark.parametrize("count, expected", [(1, [("FS605", 5)]), (7, [])])
def test_a_run_shows_what_it_counts_from(count: int, expected: list[tuple[str, int]]) -> None:
    counted = does(SchedulerStepped, scheduler=SCHEDULER, count=count)
    assert codes(BUILT, loads(WEIGHTS, MOMENTS), STEPPED, counted, saves(WEIGHTS, MOMENTS)) == expected


# --- the step ---


def loop(start: int | None, since: int = 2) -> Step:
    return does(TrainingLoop, since=since, start=start)


@pytest.mark.parametrize("start", [0, 1, None])
def test_a_loop_that_counts_from_a_constant_does_all_again(start: int | None) -> None:
    expected = [] if start is None else [("FS608", 3)]
    assert codes(loads(WEIGHTS, MOMENTS), STEPPED, saves(WEIGHTS, MOMENTS), loop(start)) == expected
    assert codes(loads(WEIGHTS, MOMENTS, COUNT), STEPPED, saves(WEIGHTS, MOMENTS, COUNT), loop(start)) == expected


@pytest.mark.parametrize("more", [STEP, UNKNOWN, Entry(key="loader", kind=Kind.LOADER), Entry(key="r", kind=Kind.RNG)])
def test_anything_else_in_the_checkpoint_may_tell(more: Entry) -> None:
    assert codes(loads(WEIGHTS, MOMENTS), STEPPED, saves(WEIGHTS, MOMENTS, more), loop(0)) == []
    assert codes(loads(WEIGHTS, MOMENTS, more), STEPPED, saves(WEIGHTS, MOMENTS), loop(0)) == []


def test_another_optimizer_that_was_loaded_is_of_another_run() -> None:
    other = entry(Kind.OPTIMIZER, Ref(41, "other"), Via.HELPER)
    assert codes(loads(WEIGHTS, other), STEPPED, saves(WEIGHTS, MOMENTS), loop(0)) == []


def test_saves_after_the_loop_are_no_resuming() -> None:
    assert codes(loads(WEIGHTS, MOMENTS), STEPPED, loop(0), saves(WEIGHTS, MOMENTS)) == []
    assert codes(STEPPED, saves(WEIGHTS, MOMENTS), loop(0, since=1), loads(WEIGHTS, MOMENTS)) == []


# --- shards ---


@pytest.mark.parametrize("per_rank, alone", [(True, False), (False, False), (None, False), (True, True)])
def test_local_shards_need_keys_of_their_own(per_rank: bool | None, alone: bool) -> None:
    shards = Entry(key="model", kind=Kind.MODEL, form=Form.LOCAL, per_rank=per_rank)
    expected = [("FS603", 1)] if per_rank and not alone else []
    assert found(does(Saved, entries=(shards,), alone=alone)) == expected


# --- random numbers ---

DROPS = does(ForwardEntered, module=MODEL, sharded=True, drops=True)


def forgets(*steps: Step) -> bool:
    return "FS607" in [code for code, _ in found(*steps)]


def test_random_numbers_of_a_resumed_run_need_the_state_of_a_generator() -> None:
    load, save = loads(WEIGHTS, MOMENTS), saves(WEIGHTS, MOMENTS, STEP)
    assert forgets(does(Seeded), load, DROPS, does(Backward), save)
    assert not forgets(load, DROPS, save)
    assert not forgets(DROPS, does(Backward), save)
    assert not forgets(load, does(ForwardEntered, module=MODEL, sharded=True), does(Backward), save)


@pytest.mark.parametrize(
    "more",
    [
        does(Seeded),
        does(RandomStateTaken),
        saves(MOMENTS, Entry(key="rng_0", kind=Kind.RNG)),
        saves(MOMENTS, Entry(key="random.python", kind=Kind.VALUE)),
        saves(MOMENTS, UNKNOWN),
        does(TorchSaved, entries=(Entry(key="", kind=Kind.RNG),)),
    ],
)
def test_they_may_go_on_in_another_way(more: Step) -> None:
    assert not forgets(loads(WEIGHTS, MOMENTS), more, DROPS, does(Backward), saves(WEIGHTS, MOMENTS))


# --- the position in the data ---

LOADER = Ref(32, "loader")
DRAWN = does(BatchesDrawn, loader=LOADER)
LEARNS = (does(ForwardEntered, module=MODEL, sharded=True), does(Backward))
MIDWAY = does(Saved, entries=(WEIGHTS, MOMENTS, STEP), underway=(LOADER,))


def begins_again(*steps: Step, rewinds: bool | None = True) -> bool:
    return "FS606" in [code for code, _ in found(does(LoaderBuilt, loader=LOADER, rewinds=rewinds), *steps)]


def test_a_pass_that_is_saved_midway_begins_again() -> None:
    load = loads(WEIGHTS, MOMENTS, STEP)
    assert begins_again(load, DRAWN, *LEARNS, MIDWAY)
    assert not begins_again(load, DRAWN, *LEARNS, MIDWAY, rewinds=None)
    assert not begins_again(load, DRAWN, *LEARNS, saves(WEIGHTS, MOMENTS, STEP))
    assert not begins_again(load, DRAWN, LEARNS[0], MIDWAY)
    assert not begins_again(DRAWN, *LEARNS, MIDWAY)


@pytest.mark.parametrize(
    "more",
    [
        does(BatchesPassedOver),
        does(BatchesPassedOver, loader=LOADER),
        does(Escaped, of=LOADER),
        does(StateTaken, of=(LOADER,), state=STATE, via=Via.METHOD),
        saves(MOMENTS, Entry(key="samples_seen", kind=Kind.VALUE)),
        saves(MOMENTS, Entry(key="rank_0", kind=Kind.LOADER)),
        saves(MOMENTS, UNKNOWN),
        does(TorchSaved),
    ],
)
def test_it_may_go_on_where_it_was(more: Step) -> None:
    assert not begins_again(loads(WEIGHTS, MOMENTS), more, DRAWN, *LEARNS, MIDWAY)


def test_batches_of_another_loader_that_are_passed_over_do_not_count() -> None:
    other = does(BatchesPassedOver, loader=Ref(33, "other"))
    assert begins_again(loads(WEIGHTS, MOMENTS), other, DRAWN, *LEARNS, MIDWAY)
