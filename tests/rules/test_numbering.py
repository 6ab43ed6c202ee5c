"""The state of an optimizer by number and by name, over traces written by hand."""

from __future__ import annotations

import pytest
from pytorch_fsdp2_dcp.validate.events import Entry, Kind, Loaded, OptimizerBuilt, Ref, Saved, Via

from .traces import MODEL, OPTIMIZER, Step, does, found

RESUMED = Ref(42, "resumed")
ONE, OTHER_ORDER, FEWER = ("body", "head"), ("head", "body"), ("body",)


def built(optimizer: Ref, given: tuple[str, ...]) -> Step:
    return does(OptimizerBuilt, optimizer=optimizer, cls="AdamW", modules=(MODEL,), given=given)


def state(of: Ref, via: Via, key: str = "optimizer") -> tuple[Entry, ...]:
    return (Entry(key=key, kind=Kind.OPTIMIZER, of=of, via=via),)


def numbered(
    given: tuple[str, ...],
    saved: Via = Via.METHOD,
    asked: Via = Via.METHOD,
    *,
    key: str = "optimizer",
    series: str | None = "c",
    more: tuple[Step, ...] = (),
) -> bool:
    """Whether a load of what was saved of an optimizer with a body and a head is found to be wrong."""
    save = does(Saved, entries=state(OPTIMIZER, saved), series="c")
    load = does(Loaded, entries=state(RESUMED, asked, key), series=series)
    steps = (built(OPTIMIZER, ONE), save, *more, built(RESUMED, given), load)
    return "FS614" in [code for code, _ in found(*steps)]


@pytest.mark.parametrize("via", [Via.METHOD, Via.OBJECT])
def test_numbers_mean_what_the_order_says(via: Via) -> None:
    assert numbered(OTHER_ORDER, via, via)
    assert not numbered(ONE, via, via)
    assert not numbered(FEWER, via, via)
    assert not numbered((), via, via)


def test_names_mean_the_same_in_any_order() -> None:
    assert not numbered(OTHER_ORDER, Via.HELPER, Via.HELPER)


@pytest.mark.parametrize("by_number", [Via.METHOD, Via.OBJECT])
def test_names_are_no_numbers(by_number: Via) -> None:
    assert numbered(ONE, by_number, Via.HELPER)
    assert numbered(ONE, Via.HELPER, by_number)
    assert not numbered(ONE, Via.VALUE, by_number)


def test_it_is_one_run_and_one_key() -> None:
    assert not numbered(OTHER_ORDER, key="other")
    assert not numbered(OTHER_ORDER, series="d")
    assert not numbered(OTHER_ORDER, series=None)


def test_another_save_of_the_run_may_fit() -> None:
    fits = does(Saved, entries=state(RESUMED, Via.METHOD), series="c")
    assert not numbered(OTHER_ORDER, more=(fits,))
