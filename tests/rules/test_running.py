"""Rules over what only a run shows: ranks that part, steps that change nothing, buffers, precision."""

from __future__ import annotations

from typing import Any

import pytest
from pytorch_fsdp2_dcp.validate.events import (
    Backward,
    Cast,
    Circumstances,
    Entry,
    Event,
    Form,
    ForwardEntered,
    GradientsCleared,
    GradientSyncSet,
    Kind,
    Loaded,
    Location,
    ModuleBuilt,
    Narrowed,
    OptimizerBuilt,
    RanksParted,
    Ref,
    Saved,
    Sharded,
    Stepped,
    Via,
)
from pytorch_fsdp2_dcp.validate.rules import judge
from pytorch_fsdp2_dcp.validate.trace import Trace

from .traces import HEAD, MODEL, OPTIMIZER, OTHER, Step, does, found, trace

OTHER_OPTIMIZER = Ref(15, "other_optimizer")


def saw(*steps: Step, **of_trace: Any) -> list[tuple[str, int]]:
    return found(*steps, **{"origin": "probe", "ended": False, **of_trace})


def test_ranks_part_where_one_calls_another_module() -> None:
    at = Location("train.py", 1)
    events: list[Event] = [
        ForwardEntered(order=1, at=at, module=MODEL, sharded=True),
        RanksParted(
            order=1, at=Location("model.py", 9), when=Circumstances(rank=1), module=HEAD, instead="`x` on rank 0"
        ),
    ]
    (finding,) = judge([Trace(origin="probe", events=tuple(events), ended=False)])
    assert (finding.code, finding.at.line, finding.ranks) == ("FS106", 9, (1,))
    assert [place for place, _ in finding.related] == [at]
    assert "rank 1 calls `model.head`" in finding.message
    assert "`x` on rank 0" in finding.message


# --- FS414 ---

BUILT = does(OptimizerBuilt, optimizer=OPTIMIZER, cls="SGD", modules=(MODEL,), stateless=True)
BACKWARD = does(Backward)
CAST = does(Cast, module=MODEL, dtype="bfloat16")


def steps(changed: bool | None, gradients: bool | None = True, optimizer: Ref = OPTIMIZER) -> Step:
    return does(Stepped, optimizer=optimizer, changed=changed, gradients=gradients)


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ([BUILT, BACKWARD, steps(False)], [("FS414", 3)]),
        ([BUILT, BACKWARD, steps(None), BACKWARD, steps(False), BACKWARD, steps(False)], [("FS414", 5)]),
        ([BUILT, BACKWARD, steps(False), BACKWARD, steps(True)], []),
        ([BUILT, BACKWARD, steps(None), BACKWARD, steps(None)], []),
        ([BUILT, steps(False, False)], []),
        ([BUILT, BACKWARD, steps(True), steps(False, False, OTHER_OPTIMIZER)], [("FS414", 4)]),
        ([BUILT, does(Sharded, module=MODEL), BACKWARD, steps(False, False)], [("FS401", 1)]),
        ([BUILT, does(GradientSyncSet, module=MODEL, on=False), BACKWARD, steps(False)], [("FS405", 4)]),
        ([does(Sharded, module=MODEL), BUILT, CAST, BACKWARD, steps(False)], [("FS205", 3)]),
    ],
    ids=["once", "after a warm-up", "later", "unknown", "not trained", "one of two", "dead", "not reduced", "rounded"],
)
def test_an_optimizer_no_step_of_which_changes_anything(program: list[Step], expected: list[tuple[str, int]]) -> None:
    assert saw(*program) == expected


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ([BUILT, BACKWARD, does(GradientsCleared, of=OPTIMIZER), steps(False, False)], "cleared between backward"),
        ([BUILT, BACKWARD, steps(False, False)], "no parameter that it was given has a gradient"),
        ([BUILT, BACKWARD, steps(False)], "rounded away"),
    ],
)
def test_the_message_says_why(program: list[Step], words: str) -> None:
    (finding,) = judge([trace(*program, origin="probe", ended=False)])
    assert words in finding.message


# --- FS506 ---


def model_entry(**fields: Any) -> Entry:
    return Entry(key="model", kind=Kind.MODEL, of=MODEL, via=Via.HELPER, form=Form.SHARDED, aliased=True, **fields)


def test_buffers_that_differ_are_told_of_once() -> None:
    built = does(ModuleBuilt, module=MODEL, cls="Model")
    apart = does(Saved, target="a", entries=(model_entry(apart=("norm.running_mean",)),))
    again = does(Saved, target="b", entries=(model_entry(apart=("norm.running_mean",)),))
    assert saw(built, apart, again) == [("FS506", 2)]
    (finding,) = judge([trace(built, apart, origin="probe", ended=False)])
    assert "`norm.running_mean`" in finding.message
    assert [place.line for place, _ in finding.related] == [1]
    assert saw(built, does(Saved, target="a", entries=(model_entry(),))) == []
    alone = does(Saved, target="a", alone=True, entries=(model_entry(apart=("norm.running_mean",)),))
    assert saw(built, alone) == []


# --- FS711 ---

NARROWED = Narrowed(names=("weight",), stored="float32", into="bfloat16")
LOADED = does(Loaded, target="a", entries=(model_entry(narrowed=NARROWED),), state=Ref(20, "state"))


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ([BUILT, LOADED, BACKWARD, steps(True)], [("FS711", 2)]),
        ([LOADED, BUILT, BACKWARD, steps(True)], [("FS711", 1)]),
        ([BUILT, LOADED], []),
        ([BUILT, BACKWARD, steps(True), LOADED], []),
        ([does(OptimizerBuilt, optimizer=OPTIMIZER, cls="SGD", modules=(OTHER,), stateless=True),
          LOADED, BACKWARD, steps(True)], []),
    ],
    ids=["trained", "built later", "not trained", "trained before", "another is trained"],
)  # fmt: skip
def test_precision_is_lost_where_what_is_loaded_is_trained(
    program: list[Step], expected: list[tuple[str, int]]
) -> None:
    assert saw(*program) == expected
