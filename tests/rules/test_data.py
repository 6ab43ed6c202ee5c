"""FS5 over traces written by hand."""

from __future__ import annotations

import pytest
from pytorch_fsdp2_dcp.validate.events import (
    Backward,
    BatchesDrawn,
    Circumstances,
    DividedByRank,
    EpochSet,
    Escaped,
    ForwardEntered,
    GroupCreated,
    LoaderBuilt,
    MeshCreated,
    Origin,
    Ref,
    RoundsDiffer,
    SamplerBuilt,
    Seeded,
    Sharded,
)

from .traces import GROUP, MODEL, Step, does, found

LOADER, SAMPLER, MESH = Ref(31, "loader"), Ref(32, "sampler"), Ref(33, "mesh")
SHARDED = does(Sharded, module=MODEL)
WHOLE = does(LoaderBuilt, loader=LOADER, whole=True, shuffles=False)
SHUFFLED = does(LoaderBuilt, loader=LOADER, whole=True, shuffles=True)
RANDOM = does(LoaderBuilt, loader=LOADER, whole=True, shuffles=False, random=True)
DRAWN = does(BatchesDrawn, loader=LOADER)
CALLED = does(ForwardEntered, module=MODEL, sharded=True)
TRAINED = (DRAWN, CALLED, does(Backward))
SEEDED, SEEDED_APART = does(Seeded, per_rank=False), does(Seeded, per_rank=True)


@pytest.mark.parametrize(
    "before", [(SHARDED, WHOLE), (SHARDED, SHUFFLED), (SEEDED, SHARDED, RANDOM), (SEEDED_APART, SHARDED, WHOLE)]
)
def test_the_same_data_on_every_rank(before: tuple[Step, ...]) -> None:
    assert found(*before, *TRAINED) == [("FS501", len(before))]


FED_ALIKE = (SHARDED, does(ForwardEntered, module=MODEL, sharded=True, same_samples=(1,)), does(Backward))


def test_calls_with_the_same_samples_on_ranks_that_average_their_gradients() -> None:
    mesh = does(MeshCreated, mesh=MESH, shape=(2, 2), dims=("dp", "tp"))
    assert found(*FED_ALIKE, origin="probe") == [("FS501", 2)]
    assert found(mesh, *FED_ALIKE, origin="probe") == [("FS501", 3)]


@pytest.mark.parametrize(
    "before",
    [
        does(MeshCreated, mesh=MESH, shape=(1, 2), dims=("dp", "cp")),
        does(MeshCreated, mesh=MESH, shape=(2,), dims=("dp_shard_cp",)),
        does(GroupCreated, group=GROUP),
    ],
)
def test_ranks_that_may_share_the_work_on_a_sample_are_given_it_alike(before: Step) -> None:
    assert found(before, *FED_ALIKE, origin="probe") == []


@pytest.mark.parametrize(
    "steps",
    [
        (WHOLE, *TRAINED),
        (SHARDED, does(LoaderBuilt, loader=LOADER, shuffles=False), *TRAINED),
        (SHARDED, WHOLE, DRAWN, CALLED),
        (SHARDED, WHOLE, DRAWN, CALLED, CALLED, does(Backward)),
        (SHARDED, WHOLE, *TRAINED, does(DividedByRank)),
        (SHARDED, WHOLE, does(Escaped, of=LOADER), *TRAINED),
        (SHARDED, RANDOM, *TRAINED),
        (SEEDED_APART, SHARDED, SHUFFLED, *TRAINED),
        (does(MeshCreated, mesh=MESH, shape=(2, 2), dims=("dp", "tp")), SHARDED, WHOLE, *TRAINED),
        (does(MeshCreated, mesh=MESH, shape=(2, 2)), SHARDED, WHOLE, *TRAINED),
    ],
)
def test_samples_that_may_differ_or_do_not_train(steps: tuple[Step, ...]) -> None:
    assert found(*steps) == []


@pytest.mark.parametrize(("alike", "expected"), [(True, [("FS501", 2)]), (False, []), (None, [])])
def test_a_run_shows_whether_first_batches_are_alike(alike: bool | None, expected: list[tuple[str, int]]) -> None:
    steps = (SHARDED, does(LoaderBuilt, loader=LOADER), does(BatchesDrawn, loader=LOADER, alike=alike), *TRAINED[1:])
    assert found(*steps, origin="probe") == expected


def test_a_run_shows_whether_batches_that_are_alike_are_divided_later() -> None:
    drawn = (SHARDED, does(LoaderBuilt, loader=LOADER), does(BatchesDrawn, loader=LOADER, alike=True))
    own = does(ForwardEntered, module=MODEL, sharded=True, other_samples=True)
    assert found(*drawn, own, does(Backward), origin="probe") == []


EVERYONE = does(SamplerBuilt, sampler=SAMPLER, everyone=True, shuffles=True)


@pytest.mark.parametrize("dims", [("dp", "tp"), ("pp", "data"), ("dp_shard", "cp"), ("data", "model")])
def test_a_sampler_by_the_global_rank_where_ranks_share_samples(dims: tuple[str, ...]) -> None:
    mesh = does(MeshCreated, mesh=MESH, shape=(2, None) if dims[0] != "pp" else (None, 2), dims=dims)
    assert found(mesh, EVERYONE) == [("FS502", 2)]
    assert found(EVERYONE, mesh) == [("FS502", 1)]


@pytest.mark.parametrize(
    "steps",
    [
        (does(MeshCreated, mesh=MESH, shape=(2, 2), dims=("dp_replicate", "dp_shard")), EVERYONE),
        (does(MeshCreated, mesh=MESH, shape=(4, 1), dims=("dp", "tp")), EVERYONE),
        (does(MeshCreated, mesh=MESH, shape=(2, 2)), EVERYONE),
        (does(MeshCreated, mesh=MESH, shape=(2, 2), dims=("dp", "tp")), does(SamplerBuilt, sampler=SAMPLER)),
        (does(MeshCreated, mesh=MESH, shape=(2, 2), dims=("dp", "tp")), does(SamplerBuilt, sampler=SAMPLER), EVERYONE),
    ],
)
def test_a_sampler_that_may_be_right(steps: tuple[Step, ...]) -> None:
    assert found(*steps) == []


def seeds_apart(**fields: object) -> Step:
    return does(SamplerBuilt, **{"sampler": SAMPLER, "everyone": True, "shuffles": True, "per_rank": True, **fields})


def test_a_sampler_that_each_rank_seeds_with_its_own_number() -> None:
    assert found(seeds_apart()) == [("FS507", 1)]


@pytest.mark.parametrize(
    "fields",
    [{"everyone": None}, {"everyone": False}, {"shuffles": False}, {"shuffles": None}, {"per_rank": None}],
    ids=str,
)
def test_a_sampler_whose_ranks_draw_one_order_or_may(fields: dict[str, object]) -> None:
    assert found(seeds_apart(**fields)) == []


LOADED = does(LoaderBuilt, loader=LOADER, sampler=SAMPLER, shuffles=False)
AGAIN = (BatchesDrawn, {"loader": LOADER, "when": Circumstances(loop=True)})


def test_an_epoch_that_is_never_set() -> None:
    assert found(EVERYONE, LOADED, AGAIN, *TRAINED[1:]) == [("FS503", 1)]


@pytest.mark.parametrize(
    "steps",
    [
        (EVERYONE, LOADED, *TRAINED),
        (EVERYONE, LOADED, does(EpochSet, of=SAMPLER), AGAIN, *TRAINED[1:]),
        (EVERYONE, LOADED, does(EpochSet, of=LOADER), AGAIN, *TRAINED[1:]),
        (EVERYONE, LOADED, AGAIN, *TRAINED[1:], does(EpochSet)),
        (EVERYONE, LOADED, AGAIN, CALLED),
        (EVERYONE, LOADED, does(Escaped, of=SAMPLER), AGAIN, *TRAINED[1:]),
        (does(SamplerBuilt, sampler=SAMPLER, shuffles=False), LOADED, AGAIN, *TRAINED[1:]),
    ],
)
def test_an_epoch_that_is_set_or_makes_no_difference(steps: tuple[Step, ...]) -> None:
    assert found(*steps) == []


# --- dropout ---


@pytest.mark.parametrize(
    ("seeds", "mesh", "same"),
    [
        ((False,), None, True),
        ((False, False), None, True),
        ((False, True), None, False),
        ((None,), None, False),
        ((), None, False),
        ((False,), ("dp", "tp"), False),
        ((False,), ("dp_replicate", "dp_shard"), True),
    ],
)
def test_each_rank_drops_out_places_of_its_own(
    seeds: tuple[bool | None, ...], mesh: tuple[str, ...] | None, same: bool
) -> None:
    steps = [does(Seeded, per_rank=per_rank) for per_rank in seeds]
    steps += [does(MeshCreated, mesh=Ref(61, "mesh"), shape=(2, 2), dims=mesh)] if mesh else []
    trained = (does(ForwardEntered, module=MODEL, sharded=True, drops=True), does(Backward))
    assert ("FS505" in [code for code, _ in found(*steps, *trained)]) is same
    assert "FS505" not in [code for code, _ in found(*steps, trained[0])]
    assert "FS505" not in [
        code for code, _ in found(*steps, does(ForwardEntered, module=MODEL, sharded=True), trained[1])
    ]


# --- rounds ---


@pytest.mark.parametrize(("origin", "told"), [("reader", [("FS504", 3)]), ("probe", [("FS504", 3)])])
def test_each_round_is_one_of_all_ranks(origin: Origin, told: list[tuple[str, int]]) -> None:
    assert found(CALLED, does(Backward), does(RoundsDiffer, since=1), origin=origin) == told


def test_rounds_without_a_sharded_model_may_differ() -> None:
    assert found(does(ForwardEntered, module=MODEL), does(RoundsDiffer, since=1)) == []
    assert found(CALLED, does(Backward), does(RoundsDiffer, since=2)) == []


BY_LOCAL_RANK = does(SamplerBuilt, sampler=SAMPLER, by_local_rank=True)
CUT_BY_LOCAL_RANK = does(DividedByRank, by_local_rank=True)


def test_data_that_goes_by_the_rank_within_a_machine() -> None:
    assert found(BY_LOCAL_RANK) == [("FS508", 1)]
    assert found(SHARDED, CUT_BY_LOCAL_RANK) == [("FS508", 2)]
    assert found(CUT_BY_LOCAL_RANK) == []
    assert found(SHARDED, does(DividedByRank), does(SamplerBuilt, sampler=SAMPLER)) == []
