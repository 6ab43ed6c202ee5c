"""FS9 over traces written by hand: gathered states, files of others."""

from __future__ import annotations

from typing import Any

import pytest
from pytorch_fsdp2_dcp.validate.events import (
    Circumstances,
    CollectiveCalled,
    Escaped,
    Event,
    GroupInitialised,
    Kind,
    Loaded,
    ModuleBuilt,
    OptimizerBuilt,
    Sharded,
    StateApplied,
    StateTaken,
    Stepped,
    TorchLoaded,
    Via,
)

from .traces import MODEL, OPTIMIZER, STATE, Step, does, entry, found

WHOLE = does(StateTaken, of=(MODEL,), state=STATE, via=Via.HELPER, full=True)
BUILT = does(ModuleBuilt, module=MODEL, cls="Model")


@pytest.mark.parametrize("origin", ["reader", "probe"])
def test_the_whole_state_is_for_one_rank(origin: str) -> None:
    assert found(WHOLE, origin=origin) == [("FS901", 1)]
    assert found(BUILT, does(Sharded, module=MODEL), WHOLE, origin=origin) == [("FS901", 3)]
    of_optimizer = does(StateTaken, of=(OPTIMIZER,), state=STATE, via=Via.HELPER, full=True)
    assert found(BUILT, of_optimizer, origin=origin) == [("FS901", 2)]


@pytest.mark.parametrize(
    "steps",
    [
        (does(StateTaken, of=(MODEL,), state=STATE, via=Via.HELPER, full=True, offload=True),),
        (does(StateTaken, of=(MODEL,), state=STATE, via=Via.HELPER, full=True, offload=None),),
        (does(StateTaken, of=(MODEL,), state=STATE, via=Via.HELPER, full=None),),
        (does(StateTaken, of=(MODEL,), state=STATE, via=Via.METHOD),),
        (does(StateTaken, of=(), state=STATE, via=Via.HELPER, full=True),),
        (does(GroupInitialised, backend="gloo", world_size=1), WHOLE),
        (BUILT, WHOLE),
        (WHOLE, does(Sharded, module=MODEL)),
        (WHOLE, does(StateApplied, to=(MODEL,), state=STATE, via=Via.HELPER, full=False)),
    ],
)
def test_a_state_that_is_not_gathered_or_is_offloaded(steps: tuple[Step, ...]) -> None:
    assert found(*steps) == []


def test_a_module_that_went_out_of_sight_may_be_sharded() -> None:
    assert found(BUILT, does(Escaped, of=MODEL), WHOLE) == [("FS901", 3)]


COUNTS = does(OptimizerBuilt, optimizer=OPTIMIZER, cls="torch.optim.AdamW", modules=(MODEL,))
READ = does(StateTaken, of=(OPTIMIZER,), state=STATE, via=Via.HELPER)
STEPPED = does(Stepped, optimizer=OPTIMIZER)
APPLIED = does(StateApplied, to=(OPTIMIZER,), via=Via.HELPER)


@pytest.mark.parametrize("origin", ["reader", "probe"])
def test_reading_makes_a_fresh_optimizer_step(origin: str) -> None:
    assert found(COUNTS, READ, STEPPED, READ, STEPPED, origin=origin) == [("FS904", 2)]
    loads_other = does(Loaded, entries=(entry(Kind.MODEL, MODEL, Via.HELPER),))
    assert found(COUNTS, READ, loads_other, STEPPED, origin=origin) == [("FS904", 2)]


@pytest.mark.parametrize(
    "steps",
    [
        (COUNTS, READ),
        (READ, STEPPED),
        (COUNTS, STEPPED, READ, STEPPED),
        (COUNTS, APPLIED, READ, STEPPED),
        (COUNTS, READ, APPLIED, STEPPED),
        (COUNTS, READ, does(Loaded), STEPPED),
        (COUNTS, does(Escaped, of=OPTIMIZER), READ, STEPPED),
        (does(OptimizerBuilt, optimizer=OPTIMIZER, cls="SGD"), READ, STEPPED),
        (COUNTS, does(StateTaken, of=(OPTIMIZER,), state=STATE, via=Via.METHOD), STEPPED),
    ],
)
def test_an_optimizer_that_is_not_fresh_or_is_put_right(steps: tuple[Step, ...]) -> None:
    assert found(*steps) == []


@pytest.mark.parametrize("weights_only", [True, False, None])
@pytest.mark.parametrize("foreign", [True, False, None])
def test_only_files_of_others_are_dangerous(weights_only: bool | None, foreign: bool | None) -> None:
    loaded = does(TorchLoaded, target="hub.pt", weights_only=weights_only, foreign=foreign)
    assert found(loaded) == ([("FS903", 1)] if weights_only is False and foreign else [])
    assert found(loaded, origin="probe") == []


def gathered(calls: dict[int, int], steps: int = 4) -> list[Step]:
    """An optimizer of two weights steps so often, and after these steps so many tensors are gathered."""
    done: list[Step] = [does(OptimizerBuilt, optimizer=OPTIMIZER, cls="AdamW", given=("weight", "bias"))]
    for step in range(steps):
        done.append(at(step, Stepped, optimizer=OPTIMIZER))
        done += [at(step + 1, CollectiveCalled, op="full_tensor")] * calls.get(step + 1, 0)
    return done


def at(step: int, cls: type[Event], **fields: Any) -> Step:
    return cls, {**fields, "when": Circumstances(rank=0, step=step)}


def test_weights_that_are_gathered_after_most_steps() -> None:
    assert found(*gathered({1: 2, 2: 2, 3: 2}), origin="probe") == [("FS901", 3)]


@pytest.mark.parametrize(
    ("calls", "steps"),
    [
        ({1: 1, 2: 1, 3: 1, 4: 1}, 4),  # a norm
        ({2: 2, 4: 2}, 4),
        ({2: 2, 5: 2, 8: 2}, 9),  # for checkpoints
    ],
)
def test_weights_that_are_gathered_now_and_then(calls: dict[int, int], steps: int) -> None:
    assert found(*gathered(calls, steps), origin="probe") == []
