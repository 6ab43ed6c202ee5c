"""FS9 over traces written by hand: gathered states, files of others."""

from __future__ import annotations

import pytest
from pytorch_fsdp2_dcp.validate.events import (
    Escaped,
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
