"""Ties over traces written by hand."""

from __future__ import annotations

import pytest
from pytorch_fsdp2_dcp.validate.events import (
    Backward,
    Choice,
    Escaped,
    ForwardEntered,
    GroupDestroyed,
    Materialised,
    OptimizerBuilt,
    Parallelised,
    Ref,
    Sharded,
    StateApplied,
    Tied,
    Via,
)
from pytorch_fsdp2_dcp.validate.rules import judge

from .traces import HEAD, HOLDERS, MODEL, OPTIMIZER, OTHER, Step, does, trace

EMBED = Ref(6, "model.embed")
TIED = does(Tied, module=HEAD, name="weight", to=EMBED)
EMPTIED = does(Materialised, module=MODEL)
CALL = does(ForwardEntered, module=MODEL, sharded=True)
BUILT = does(OptimizerBuilt, optimizer=OPTIMIZER, cls="AdamW", modules=(MODEL,))
ROOT = does(Sharded, module=MODEL, manages=True)
TIES = {**HOLDERS, EMBED.id: frozenset({MODEL.id})}


def assigns(**fields: object) -> Step:
    return does(StateApplied, to=(MODEL,), **{"via": Via.METHOD, "assign": True, **fields})


def split(*renewed: Ref) -> Step:
    return does(Parallelised, module=MODEL, renewed=renewed)


def found(*steps: Step) -> list[tuple[str, int]]:
    rules = ("FS305", "FS306")
    return [(f.code, f.at.line) for f in judge([trace(*steps, holders=TIES)]) if f.code in rules]


def test_a_tie_is_lost_where_each_module_gets_parameters_of_its_own() -> None:
    assert found(TIED, EMPTIED, ROOT, CALL) == [("FS305", 2)]
    assert found(TIED, EMPTIED, BUILT) == [("FS305", 2)]
    assert found(TIED, assigns(), ROOT, CALL) == [("FS305", 2)]
    assert found(TIED, split(HEAD, EMBED), ROOT, CALL) == [("FS305", 2)]
    assert found(TIED, split(EMBED), ROOT, CALL) == [("FS305", 2)]
    assert found(TIED, EMPTIED, CALL, does(Backward), does(GroupDestroyed)) == [("FS305", 2)]
    (finding,) = judge([trace(TIED, EMPTIED, CALL, holders=TIES)])
    assert "`model.head.weight`" in finding.message
    assert "`model.embed`" in finding.message
    assert [place.line for place, _ in finding.related] == [1]


@pytest.mark.parametrize(
    "steps",
    [
        (TIED, ROOT, EMPTIED, CALL),
        (TIED, EMPTIED, BUILT, CALL, does(GroupDestroyed)),  # nothing is trained before the end
        (TIED, EMPTIED, TIED, CALL),
        (TIED, EMPTIED, does(Tied, module=EMBED, name="weight", to=HEAD), CALL),
        (TIED, EMPTIED, does(Tied, module=MODEL), CALL),
        (TIED, EMPTIED, CALL, TIED),
        (TIED, EMPTIED, does(Escaped, of=MODEL), CALL),
        (TIED, EMPTIED, does(Escaped, of=HEAD), CALL),
        (TIED, does(Materialised, module=HEAD), CALL),
        (TIED, does(Materialised, module=OTHER), CALL),
        (TIED, EMPTIED, does(ForwardEntered, module=OTHER)),
        (TIED, EMPTIED),
        (EMPTIED, TIED, CALL),
        (TIED, assigns(assign=None), CALL),
        (TIED, assigns(assign=False), CALL),
        (TIED, assigns(via=Via.HELPER), CALL),
        (does(Tied, module=MODEL), EMPTIED, CALL),
        (TIED, split(), ROOT, CALL),
        (TIED, split(OTHER), ROOT, CALL),
        (TIED, split(HEAD, EMBED), TIED, ROOT, CALL),
        (
            does(Tied, module=HEAD, name="weight", to=EMBED, branch=Choice(1, True)),
            does(Materialised, module=MODEL, branch=Choice(1, False)),
            CALL,
        ),
    ],
)
def test_a_tie_is_kept_or_may_be_mended(steps: tuple[Step, ...]) -> None:
    assert found(*steps) == []


def shards(module: Ref, taken: bool | None = None, beside: tuple[Ref, ...] = ()) -> Step:
    branch = None if taken is None else Choice(1, taken)
    return does(Sharded, module=module, manages=True, beside=beside, branch=branch)


MAYBE_TIED = does(Tied, module=HEAD, name="weight", to=EMBED, branch=Choice(1, True))


def test_two_groups_take_what_is_tied() -> None:
    assert found(TIED, shards(HEAD), shards(EMBED), ROOT) == [("FS306", 3)]
    assert found(TIED, shards(EMBED), ROOT) == [("FS306", 3)]
    assert found(TIED, shards(HEAD), ROOT, CALL) == [("FS306", 3)]
    assert found(MAYBE_TIED, shards(EMBED), ROOT) == [("FS306", 3)]
    assert found(MAYBE_TIED, shards(EMBED, taken=True), ROOT) == [("FS306", 3)]


@pytest.mark.parametrize(
    "steps",
    [
        (TIED, ROOT),
        (TIED, shards(HEAD, beside=(EMBED,)), shards(EMBED, beside=(HEAD,)), ROOT),
        (TIED, shards(EMBED)),
        (shards(EMBED), TIED, ROOT),
        (TIED, shards(EMBED), does(Escaped, of=HEAD), ROOT),
        (MAYBE_TIED, shards(EMBED, taken=False), ROOT),
        (TIED, shards(EMBED, taken=True), shards(HEAD, taken=False), CALL),
        (does(Tied, module=HEAD, name="weight", to=EMBED, branch=Choice(2, True)), shards(EMBED, taken=True), ROOT),
        (does(Tied, module=MODEL), shards(EMBED), ROOT),
    ],
)
def test_what_is_tied_is_in_one_group_or_not_known_to_be_in_two(steps: tuple[Step, ...]) -> None:
    assert found(*steps) == []
