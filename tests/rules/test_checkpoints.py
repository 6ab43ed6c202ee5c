"""FS6, FS7 and FS8 over traces written by hand."""

from __future__ import annotations

import pytest
from pytorch_fsdp2_dcp.validate.events import (
    AsyncSaved,
    Awaited,
    Choice,
    Compiled,
    Entry,
    Escaped,
    Exited,
    Form,
    GroupInitialised,
    Kind,
    Loaded,
    OptimizerBuilt,
    Ref,
    Saved,
    StateApplied,
    StateTaken,
    Stepped,
    TorchSaved,
    Via,
)
from pytorch_fsdp2_dcp.validate.rules import judge

from .traces import (
    BLOCKS,
    FUTURE,
    GROUP,
    MODEL,
    OPTIMIZER,
    OTHER,
    STATE,
    Step,
    does,
    entry,
    found,
    saves_async,
    trace,
)

BUILT = does(OptimizerBuilt, optimizer=OPTIMIZER, cls="torch.optim.AdamW", modules=(MODEL,))
SECOND = Ref(22, "second")


# --- saving ---


@pytest.mark.parametrize("form", list(Form))
def test_torch_save_is_for_whole_tensors(form: Form) -> None:
    saved = does(TorchSaved, entries=(entry(Kind.MODEL, MODEL, Via.METHOD, form=form),))
    assert found(saved) == ([("FS601", 1)] if form in (Form.SHARDED, Form.LOCAL) else [])


@pytest.mark.parametrize("form", list(Form))
def test_dcp_is_for_sharded_state(form: Form) -> None:
    entries = (entry(Kind.MODEL, MODEL, Via.HELPER, form=form),)
    expected = [("FS602", 1)] if form is Form.FULL else []
    assert found(does(Saved, entries=entries)) == expected
    assert found(does(AsyncSaved, future=FUTURE, entries=entries), does(Awaited, future=FUTURE)) == expected


@pytest.mark.parametrize("per_rank", [True, False, None])
def test_a_value_that_differs_needs_a_key_that_does(per_rank: bool | None) -> None:
    entries = (Entry(key="rng", kind=Kind.RNG, per_rank=per_rank),)
    assert found(does(Saved, entries=entries)) == ([("FS604", 1)] if per_rank else [])
    assert found(does(Saved, entries=entries, alone=True)) == []


def test_ranks_of_several_machines_share_a_key_with_the_local_rank() -> None:
    entries = (Entry(key="*", kind=Kind.RNG, by_rank=True, by_local_rank=True),)
    assert found(does(Saved, entries=entries)) == [("FS615", 1)]
    assert found(does(AsyncSaved, future=FUTURE, entries=entries), does(Awaited, future=FUTURE)) == [("FS615", 1)]
    assert found(does(Saved, entries=entries, alone=True)) == []
    assert found(does(Saved, entries=(Entry(key="*", kind=Kind.RNG, by_rank=True),))) == []


def test_a_dictionary_that_was_not_seen_into_is_not_judged() -> None:
    assert found(does(Saved), does(TorchSaved), does(Loaded)) == []


# --- loading ---

APPLIED = does(StateApplied, to=(OPTIMIZER,))
RAW = does(Loaded, entries=(entry(Kind.OPTIMIZER, OPTIMIZER, Via.OBJECT),))


def loads(*entries: Entry) -> Step:
    return does(Loaded, entries=entries, state=STATE)


@pytest.mark.parametrize("via", [Via.OBJECT, Via.METHOD])
def test_a_fresh_optimizer_has_nothing_to_load_into(via: Via) -> None:
    assert found(BUILT, loads(entry(Kind.OPTIMIZER, OPTIMIZER, via)), APPLIED) == [("FS701", 2)]
    step_later = does(Stepped, optimizer=OPTIMIZER)
    assert found(BUILT, loads(entry(Kind.OPTIMIZER, OPTIMIZER, via)), APPLIED, step_later) == [("FS701", 2)]
    other_stepped = does(Stepped, optimizer=OTHER)
    assert found(BUILT, other_stepped, loads(entry(Kind.OPTIMIZER, OPTIMIZER, via)), APPLIED) == [("FS701", 3)]


def test_a_state_dict_taken_by_method_creates_no_state() -> None:
    taken = does(StateTaken, of=(OPTIMIZER,), state=STATE, via=Via.METHOD)
    assert found(BUILT, taken, RAW) == [("FS701", 3)]


@pytest.mark.parametrize(
    "before",
    [
        (BUILT, does(Stepped, optimizer=OPTIMIZER)),
        (BUILT, does(StateTaken, of=(MODEL, OPTIMIZER), state=STATE, via=Via.HELPER)),
        (BUILT, APPLIED),
        (BUILT, does(Escaped, of=OPTIMIZER)),
        (does(OptimizerBuilt, optimizer=OPTIMIZER, cls="SGD", stateless=True),),
        (does(OptimizerBuilt, optimizer=OPTIMIZER, cls="torch.optim.Adagrad"),),
        (),
    ],
)
def test_an_optimizer_that_has_or_may_have_state(before: tuple[Step, ...]) -> None:
    assert found(*before, RAW) == []


def test_an_optimizer_loaded_by_helper_has_its_state_created() -> None:
    assert found(BUILT, loads(entry(Kind.OPTIMIZER, OPTIMIZER, Via.HELPER)), APPLIED) == []


@pytest.mark.parametrize("kind", [Kind.OPTIMIZER, Kind.SCHEDULER, Kind.LOADER])
def test_python_values_in_a_state_dict_must_be_applied(kind: Kind) -> None:
    loaded = loads(entry(kind, OTHER, Via.HELPER, aliased=True))
    assert found(loaded) == [("FS702", 1)]
    assert found(does(StateApplied, to=(OTHER,)), loaded) == [("FS702", 2)]
    assert found(loaded, does(StateApplied, to=(MODEL,))) == [("FS702", 1)]


@pytest.mark.parametrize("aliased", [True, False, None])
def test_a_model_must_be_applied_when_its_tensors_were_copied(aliased: bool | None) -> None:
    loaded = loads(entry(Kind.MODEL, MODEL, Via.HELPER, form=Form.FULL, aliased=aliased))
    assert found(loaded) == ([("FS702", 1)] if aliased is False else [])


@pytest.mark.parametrize(
    "steps",
    [
        (loads(entry(Kind.SCHEDULER, OTHER, Via.METHOD)), does(StateApplied, to=(OTHER,))),
        (
            loads(entry(Kind.SCHEDULER, OTHER, Via.METHOD)),
            does(StateApplied, to=(OTHER,), branch=Choice(1, True)),
        ),
        (loads(entry(Kind.SCHEDULER, OTHER, Via.METHOD)), does(Escaped, of=OTHER)),
        (loads(entry(Kind.SCHEDULER, OTHER, Via.METHOD)), does(Escaped, of=STATE)),
        (loads(entry(Kind.SCHEDULER, OTHER, Via.OBJECT)),),
        (loads(entry(Kind.SCHEDULER, None, Via.METHOD)),),
        (loads(Entry(key="step", kind=Kind.VALUE)),),
        (loads(entry(Kind.SCHEDULER, OTHER, Via.METHOD)), does(Exited, code=1, error="ValueError: no")),
    ],
)
def test_what_is_applied_or_may_be(steps: tuple[Step, ...]) -> None:
    assert found(*steps) == []


def test_a_trace_that_was_cut_off_tells_nothing_of_what_is_absent() -> None:
    assert found(loads(entry(Kind.SCHEDULER, OTHER, Via.METHOD)), saves_async(), ended=False) == []


# --- asynchronous saves ---


def test_a_save_nobody_waits_for() -> None:
    assert found(saves_async()) == [("FS801", 1)]
    assert found(saves_async(), does(Awaited, future=SECOND)) == [("FS801", 1)]
    assert found(saves_async(), does(Exited, code=0)) == [("FS801", 1)]


def test_the_last_save_of_a_loop_is_forgotten() -> None:
    """Each round waits for the save of the round before."""
    last = Ref(23, "future")
    assert found(saves_async(), does(Awaited, future=FUTURE), saves_async(last)) == [("FS801", 3)]


@pytest.mark.parametrize(
    "after",
    [
        (does(Awaited, future=FUTURE),),
        (does(Awaited, future=FUTURE, branch=Choice(1, True)),),
        (does(Escaped, of=FUTURE),),
        (does(Exited, code=-9),),
        (does(Exited, code=1, error="KeyboardInterrupt: "),),
    ],
)
def test_a_save_that_is_or_may_be_awaited(after: tuple[Step, ...]) -> None:
    assert found(saves_async(), *after) == []


def test_two_saves_at_once() -> None:
    both = (does(Awaited, future=FUTURE), does(Awaited, future=SECOND))
    assert found(saves_async(), saves_async(SECOND), *both) == [("FS802", 2)]
    assert found(saves_async(), saves_async(SECOND), *both, ended=False) == [("FS802", 2)]


@pytest.mark.parametrize(
    "between",
    [does(Awaited, future=FUTURE), does(Awaited, future=FUTURE, branch=Choice(1, True)), does(Escaped, of=FUTURE)],
)
def test_the_first_save_is_or_may_be_awaited_before_the_second(between: Step) -> None:
    assert found(saves_async(), between, saves_async(SECOND), does(Awaited, future=SECOND)) == []


def test_saves_on_two_sides_of_a_branch_never_meet() -> None:
    one = saves_async(branch=Choice(1, True))
    other = saves_async(SECOND, branch=Choice(1, False), group=GROUP)
    assert found(one, other, does(Awaited, future=FUTURE), does(Awaited, future=SECOND)) == []


@pytest.mark.parametrize("misses", [True, False, None])
def test_a_group_has_all_ranks_that_hold_other_shards(misses: bool | None) -> None:
    for saved in (does(Saved, misses=misses), does(AsyncSaved, future=FUTURE, misses=misses)):
        codes = [code for code, _ in found(saved, does(Awaited, future=FUTURE))]
        assert ("FS611" in codes) is (misses is True)


# --- names in keys ---


@pytest.mark.parametrize("via", [Via.METHOD, Via.OBJECT, Via.HELPER])
@pytest.mark.parametrize("event", [Saved, TorchSaved])
def test_what_is_saved_has_the_models_own_names(event: type[Saved] | type[TorchSaved], via: Via) -> None:
    wrapped = Entry(key="model", kind=Kind.MODEL, of=MODEL, via=via, prefix="_orig_mod.")
    other = Entry(key="step", kind=Kind.VALUE)
    started = does(GroupInitialised, backend="gloo", device_bound=True)
    of_rules = [f for f in found(started, does(event, entries=(other, wrapped))) if f[0] == "FS613"]
    assert of_rules == [("FS613", 2)]
    assert ("FS613", 2) not in found(started, does(event, entries=(other, entry(Kind.MODEL, MODEL, via))))


def test_what_one_process_saves_alone_may_have_any_names() -> None:
    wrapped = Entry(key="model", kind=Kind.MODEL, of=MODEL, via=Via.METHOD, prefix="_orig_mod.")
    assert found(does(TorchSaved, entries=(wrapped,))) == []


def test_a_template_to_load_into_may_have_what_the_checkpoint_has() -> None:
    wrapped = Entry(key="model", kind=Kind.MODEL, of=MODEL, via=Via.METHOD, prefix="_orig_mod.")
    applied = does(StateApplied, to=(MODEL,), state=STATE)
    assert found(does(Loaded, state=STATE, entries=(wrapped,)), applied) == []


def test_the_wrapping_is_told_with_the_save() -> None:
    wrapped = Entry(key="model", kind=Kind.MODEL, of=MODEL, via=Via.METHOD, prefix="_orig_mod.")
    steps = (
        does(Compiled, module=OTHER, wrapped=True),
        does(Compiled, module=BLOCKS, wrapped=True),
        does(Compiled, module=MODEL, wrapped=False),
        does(Saved, entries=(wrapped,)),
    )
    (finding,) = [f for f in judge([trace(*steps)]) if f.code == "FS613"]
    assert [at.line for at, _ in finding.related] == [2]
