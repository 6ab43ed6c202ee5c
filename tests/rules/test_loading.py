"""FS703, FS704, FS706, FS707, FS710, FS712 and FS713 over traces written by hand."""

from __future__ import annotations

from typing import Any

import pytest
from pytorch_fsdp2_dcp.validate.events import (
    AsyncSaved,
    Awaited,
    Choice,
    Entry,
    Escaped,
    Event,
    Kind,
    Loaded,
    LoadedValueRead,
    Ref,
    Saved,
    Stepped,
    Via,
)

from .traces import FUTURE, GROUP, OPTIMIZER, STATE, Step, does, entry, found

LOADED = does(Loaded, state=STATE)
YES, NO = Choice(1, True), Choice(1, False)


def reads(key: str | None = "step", **fields: object) -> Step:
    return does(LoadedValueRead, state=STATE, key=key, **fields)


def uses(key: str = "step") -> Step:
    return reads(key, stale=True, name=key)


# --- FS703 ---


def test_a_variable_that_kept_its_value_is_told_unless_the_key_is_read() -> None:
    assert found(LOADED, uses()) == [("FS703", 1)]
    assert found(LOADED, uses(), reads()) == []
    assert found(LOADED, reads(None), uses()) == []
    assert found(LOADED, reads("epoch"), uses()) == [("FS703", 1)]
    assert found(LOADED, reads()) == []
    assert found(uses(), LOADED) == []


def test_a_key_is_judged_by_itself() -> None:
    assert found(LOADED, uses("step"), reads("step"), uses("epoch")) == [("FS703", 1)]
    assert found(LOADED, uses("seed")) == [], "no counter"


def test_a_dictionary_that_went_out_of_sight_may_be_read_there() -> None:
    assert found(LOADED, does(Escaped, of=STATE), uses()) == []
    assert found(does(Loaded, state=Ref(99, "other")), uses()) == []
    assert found(does(Loaded), uses()) == []


def test_a_variable_that_is_read_only_where_nothing_was_loaded_is_not_told() -> None:
    loaded = does(Loaded, state=STATE, branch=YES)
    assert found(loaded, does(LoadedValueRead, state=STATE, key="step", stale=True, name="step", branch=NO)) == []


# --- FS704 ---


def holds(*kinds: Kind, series: str | None = "c") -> dict[str, Any]:
    return {"series": series, "entries": tuple(entry(kind, None, Via.VALUE) for kind in kinds)}


def test_what_is_saved_is_asked_for_by_some_load() -> None:
    stepped = does(Stepped, optimizer=OPTIMIZER)
    saved = does(Saved, **holds(Kind.MODEL, Kind.OPTIMIZER))
    model, both = does(Loaded, **holds(Kind.MODEL)), does(Loaded, **holds(Kind.MODEL, Kind.OPTIMIZER))
    assert found(model, stepped, saved) == [("FS704", 1)]
    assert found(model, stepped, saved, origin="probe") == [("FS704", 1)]
    assert found(model, saved) == [], "it does not train on"
    assert found(both, stepped, saved) == []
    assert found(model, both, stepped, saved) == []
    assert found(does(Loaded, **holds(Kind.MODEL, series="other")), stepped, saved) == []
    assert found(does(Loaded, **holds(Kind.MODEL, series=None)), stepped, saved) == []
    assert found(does(Loaded, series="c"), stepped, saved) == []
    assert found(model, stepped, does(Saved, **holds(Kind.MODEL, Kind.RNG, Kind.UNKNOWN))) == []


@pytest.mark.parametrize(("key", "told"), [("step", True), ("train.tokens_seen", True), ("config", False)])
def test_of_plain_values_those_that_count_matter(key: str, told: bool) -> None:
    kept = Entry(key="model", kind=Kind.MODEL)
    saved = does(Saved, series="c", entries=(kept, Entry(key=key, kind=Kind.VALUE)))
    loaded = does(Loaded, series="c", entries=(kept,))
    assert found(loaded, does(Stepped, optimizer=OPTIMIZER), saved) == ([("FS704", 1)] if told else [])


# --- FS706 ---


@pytest.mark.parametrize("whole", [True, False, None])
def test_a_checkpoint_is_whole(whole: bool | None) -> None:
    loaded = does(Loaded, state=STATE, whole=whole)
    assert found(loaded) == found(loaded, origin="probe") == ([("FS706", 1)] if whole is False else [])


# --- FS707 ---


def test_what_is_caught_in_vain_is_told() -> None:
    assert found(does(Loaded, state=STATE, caught="Exception")) == [("FS707", 1)]
    assert found(does(Saved, caught="OSError")) == [("FS707", 1)]
    assert found(does(Saved)) == []
    assert found(does(AsyncSaved, future=FUTURE, group=GROUP, caught="Exception"), does(Awaited, future=FUTURE)) == []


# --- FS710 ---


@pytest.mark.parametrize(
    "fields", [{}, {"partial": True}, {"partial": None}, {"looked_into": True}, {"alone": True}, {"entries": None}]
)
def test_a_key_of_each_rank_is_told_unless_the_program_may_know(fields: dict[str, Any]) -> None:
    own = (Entry(key="*", kind=Kind.RNG, by_rank=True),)
    loaded = does(Loaded, **{"state": STATE, "entries": own, **fields})
    assert found(loaded) == ([] if fields else [("FS710", 1)])
    assert found(does(Saved, entries=own)) == []
    assert found(does(Saved, entries=own), loaded) == [], "the ranks that load are those that saved"


# --- FS712 ---


@pytest.mark.parametrize("partial", [True, False, None])
def test_an_empty_dictionary_is_told_unless_another_planner_may_fill_it(partial: bool | None) -> None:
    loaded = does(Loaded, state=STATE, entries=(), partial=partial)
    assert found(loaded) == ([] if partial is None else [("FS712", 1)])
    assert found(does(Escaped, of=STATE), loaded) == []


# --- FS713 ---


@pytest.mark.parametrize("kind", [Saved, AsyncSaved, Loaded])
def test_a_checkpoint_is_somewhere(kind: type[Event]) -> None:
    own = {"future": FUTURE, "group": GROUP} if kind is AsyncSaved else {}
    awaited = does(Awaited, future=FUTURE)
    assert found(does(kind, located=False, **own), awaited) == [("FS713", 1)]
    assert found(does(kind, **own), awaited) == []
