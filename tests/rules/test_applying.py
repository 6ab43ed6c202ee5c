"""FS705, FS708 and FS709 over traces written by hand."""

from __future__ import annotations

from typing import Any

import pytest
from pytorch_fsdp2_dcp.validate.events import Form, Origin, Sharded, StateApplied, Via

from .traces import HEAD, MODEL, OTHER, does, found

SHARDED = does(Sharded, module=MODEL)


def codes(*, origin: Origin = "reader", sharded: bool = True, **fields: Any) -> list[str]:
    """The codes found where a state dict is given to the model."""
    applied = does(StateApplied, **{"to": (MODEL,), **fields})
    return [code for code, _ in found(*([SHARDED] if sharded else []), applied, origin=origin)]


# --- FS705 ---


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"strict": False, "unread": True}, True),
        ({"strict": False, "unread": False}, False),
        ({"strict": False}, False),
        ({"strict": None, "unread": True}, False),
        ({"strict": True, "unread": True}, False),
        ({"strict": False, "unread": True, "to": (HEAD,)}, True),
        ({"strict": False, "unread": True, "to": (OTHER,)}, False),
    ],
)
def test_forgiving_is_not_forgetting(fields: dict[str, Any], told: bool) -> None:
    assert codes(**fields) == (["FS705"] if told else [])


@pytest.mark.parametrize("missed", [True, False, None])
def test_in_a_run_only_a_load_of_nothing_is_told(missed: bool | None) -> None:
    assert codes(origin="probe", strict=False, missed=missed) == (["FS705"] if missed else [])


def test_a_model_that_is_not_sharded_is_not_our_business() -> None:
    assert codes(sharded=False, strict=False, unread=True) == []


# --- FS708 ---


@pytest.mark.parametrize("full", [True, False, None])
@pytest.mark.parametrize("broadcast", [True, False, None])
@pytest.mark.parametrize("empty", [True, False, None])
def test_the_options_of_the_helpers(full: bool | None, broadcast: bool | None, empty: bool | None) -> None:
    wrong = (broadcast is True and full is False) or (full is True and broadcast is False and empty is True)
    assert codes(via=Via.HELPER, full=full, broadcast=broadcast, empty=empty) == (["FS708"] if wrong else [])


@pytest.mark.parametrize("form", list(Form))
@pytest.mark.parametrize("assign", [True, False, None])
def test_whole_tensors_are_neither_copied_nor_assigned(form: Form, assign: bool | None) -> None:
    """Copying is FS708, assigning FS709."""
    expected = {True: ["FS709"], False: ["FS708"], None: []}[assign] if form is Form.FULL else []
    assert codes(form=form, assign=assign) == expected
    assert codes(form=form, assign=assign, sharded=False) == []
    assert codes(form=form, assign=assign, to=(OTHER,)) == []


def test_a_helper_splits_whole_tensors_when_told_to() -> None:
    assert codes(via=Via.HELPER, form=Form.FULL, full=True) == []
    assert codes(via=Via.HELPER, form=Form.FULL, full=None) == []
    assert codes(via=Via.HELPER, form=Form.FULL, full=False) == ["FS708"]
