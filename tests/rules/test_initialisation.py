"""FS3 over traces written by hand."""

from __future__ import annotations

import pytest
from pytorch_fsdp2_dcp.validate.events import (
    CollectiveCalled,
    Escaped,
    ForwardEntered,
    Location,
    Materialised,
    MeshCreated,
    ModuleBuilt,
    OptimizerBuilt,
    Origin,
    Parallelised,
    Ref,
    Seeded,
    Sharded,
    StateApplied,
    Unset,
    Via,
)
from pytorch_fsdp2_dcp.validate.rules import judge

from .traces import BLOCKS, HEAD, MODEL, OTHER, Step, does, found, trace

BUILT = does(ModuleBuilt, module=MODEL, cls="Net", meta=True)
EMPTIED = does(Materialised, module=MODEL)


def call(unset: Unset | None = None, on_meta: bool = False) -> Step:
    return does(ForwardEntered, module=MODEL, unset=unset, on_meta=on_meta)


def test_a_model_is_called_on_the_meta_device() -> None:
    trained = does(OptimizerBuilt, optimizer=OTHER, cls="AdamW", modules=(MODEL,))
    assert found(BUILT, call(on_meta=True), trained) == [("FS301", 2)]
    (finding,) = judge([trace(BUILT, call(on_meta=True), trained)])
    assert [(place.line, word) for place, word in finding.related] == [(1, "built on the meta device here")]
    assert found(BUILT, does(Escaped, of=MODEL), call(on_meta=True), trained) == []
    assert found(BUILT, call(on_meta=True)) == []  # for its shapes


@pytest.mark.parametrize(
    ("unset", "code"),
    [
        (Unset(everything=True), "FS302"),
        (Unset(parameters=("head.weight",), buffers=("freqs",), everything=True), "FS302"),
        (Unset(buffers=("freqs",)), "FS303"),
        (Unset(parameters=("head.weight",)), "FS304"),
    ],
)
def test_what_was_left_is_told_at_the_to_empty_that_left_it(unset: Unset, code: str) -> None:
    assert found(BUILT, EMPTIED, call(unset)) == [(code, 2)]
    assert found(BUILT, does(Materialised, module=HEAD), does(Materialised, module=OTHER), call(unset)) == [(code, 2)]


def test_parameters_and_buffers_that_are_left_are_two_mistakes() -> None:
    both = Unset(parameters=("a", "b", "c", "d"), buffers=("freqs",))
    assert found(EMPTIED, call(both)) == [("FS303", 1), ("FS304", 1)]
    message = judge([trace(EMPTIED, call(both))])[1].message
    assert "`a`, `b`, `c` and 1 more" in message


@pytest.mark.parametrize(
    "steps",
    [
        (EMPTIED, call()),
        (call(Unset(everything=True)), EMPTIED),
        (does(Materialised, module=OTHER), call(Unset(everything=True))),
        (EMPTIED, does(Escaped, of=MODEL), call(Unset(everything=True))),
        (EMPTIED, does(ForwardEntered, module=BLOCKS)),
    ],
)
def test_nothing_is_known_to_be_left(steps: tuple[Step, ...]) -> None:
    assert found(*steps) == []


REAL = does(ModuleBuilt, module=MODEL, cls="Net", meta=False)
BY_RANK, SEEDED = does(Seeded, per_rank=True), does(Seeded, per_rank=False)
SHARDED = does(Sharded, module=MODEL)
UNLIKE = does(ForwardEntered, module=MODEL, sharded=True, alike=False)


def loads(only: str | None = "rank == 0", line: int = 50) -> Step:
    return does(StateApplied, to=(MODEL,), only=only, at=Location("train.py", line))


def unlike(*steps: Step, origin: Origin = "reader") -> list[int]:
    return [line for code, line in found(*steps, origin=origin) if code == "FS307"]


def test_ranks_draw_or_load_weights_of_their_own() -> None:
    assert unlike(BY_RANK, REAL, SHARDED, UNLIKE) == [2]
    assert unlike(REAL, loads(), SHARDED, UNLIKE) == [50]
    assert unlike(REAL, loads(), loads(), SHARDED, UNLIKE) == [50]


def test_of_a_run_it_is_seen_and_counts_where_it_was_not_meant() -> None:
    mesh = Ref(30, "mesh")
    hybrid = does(Sharded, module=MODEL, mesh_dims=("dp_replicate", "dp_shard"), mesh=mesh, root=mesh)
    made, flat = (
        does(MeshCreated, mesh=mesh, shape=shape, dims=("dp_replicate", "dp_shard")) for shape in ((2, 4), (1, 8))
    )
    assert unlike(does(Seeded), REAL, SHARDED, UNLIKE, origin="probe") == [2]
    assert unlike(REAL, loads(None), SHARDED, UNLIKE, origin="probe") == [1]
    assert unlike(made, REAL, hybrid, UNLIKE, origin="probe") == [2]
    assert unlike(made, hybrid, UNLIKE, origin="probe") == [2]
    assert unlike(flat, REAL, hybrid, UNLIKE, origin="probe") == []
    given = does(StateApplied, to=(MODEL,), via=Via.HELPER, full=True)
    assert unlike(SHARDED, given, UNLIKE, origin="probe") == [2]
    assert unlike(REAL, does(Seeded), SHARDED, UNLIKE, origin="probe") == []
    assert unlike(REAL, SHARDED, UNLIKE, origin="probe") == []


@pytest.mark.parametrize(
    "steps",
    [
        (BY_RANK, REAL, SHARDED, does(ForwardEntered, module=MODEL, alike=True)),
        (BY_RANK, REAL, SHARDED, does(ForwardEntered, module=MODEL)),
        (BY_RANK, REAL, UNLIKE),
        (BY_RANK, REAL, does(Parallelised, module=MODEL), SHARDED, UNLIKE),
        (BY_RANK, REAL, does(Escaped, of=MODEL), SHARDED, UNLIKE),
        (SEEDED, REAL, SHARDED, UNLIKE),
        (REAL, loads(), loads("rank != 0", 51), SHARDED, UNLIKE),
        (REAL, loads(None), SHARDED, UNLIKE),
        (REAL, loads(), does(CollectiveCalled, op="broadcast"), SHARDED, UNLIKE),
    ],
)
def test_ranks_are_not_known_to_start_different(steps: tuple[Step, ...]) -> None:
    assert unlike(*steps) == []
