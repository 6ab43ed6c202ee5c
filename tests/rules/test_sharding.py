"""FS2 over traces written by hand."""

from __future__ import annotations

import pytest
from pytorch_fsdp2_dcp.validate.events import (
    AcceleratorUsed,
    ActivationsCheckpointed,
    Backward,
    Choice,
    CollectiveCalled,
    Compiled,
    DeepCopied,
    Escaped,
    ForwardEntered,
    Location,
    Materialised,
    MeshCreated,
    ModuleBuilt,
    OptimizerBuilt,
    Parallelised,
    Precision,
    Ref,
    Sharded,
    Stepped,
)
from pytorch_fsdp2_dcp.validate.rules import judge

from .traces import ATTENTION, BLOCKS, HEAD, MODEL, OPTIMIZER, OTHER, Step, does, found, trace

BLOCK_BY_BLOCK = does(Sharded, module=BLOCKS)
ROOT = does(Sharded, module=MODEL, blocks=True)
CALL = does(ForwardEntered, module=MODEL, sharded=True)


def test_the_root_is_called_but_only_parts_are_sharded() -> None:
    assert found(BLOCK_BY_BLOCK, CALL) == [("FS201", 1)]
    assert found(BLOCK_BY_BLOCK, CALL, ROOT) == [("FS201", 1)]


@pytest.mark.parametrize(
    "steps",
    [
        (BLOCK_BY_BLOCK, ROOT, CALL),
        (BLOCK_BY_BLOCK, does(ForwardEntered, module=MODEL, sharded=True, uncovered=())),
        (BLOCK_BY_BLOCK, ROOT, does(ForwardEntered, module=HEAD)),
        (BLOCK_BY_BLOCK, does(ForwardEntered, module=OTHER)),
        (BLOCK_BY_BLOCK, does(Escaped, of=MODEL), CALL),
        (BLOCK_BY_BLOCK, does(Sharded, module=MODEL, branch=Choice(1, True)), CALL),
        (CALL, BLOCK_BY_BLOCK, ROOT),
    ],
)
def test_no_parameter_is_known_to_be_left_out(steps: tuple[Step, ...]) -> None:
    assert found(*steps) == []


def test_what_is_left_out_is_named() -> None:
    call = does(ForwardEntered, module=MODEL, sharded=True, uncovered=("head.weight", "norm.weight"))
    (finding,) = judge([trace(BLOCK_BY_BLOCK, call)])
    assert "`head.weight`, `norm.weight`" in finding.message


def test_a_model_of_blocks_is_sharded_as_one_group() -> None:
    assert found(ROOT, CALL) == [("FS202", 1)]
    assert found(ROOT, CALL, ended=False) == [("FS202", 1)]


@pytest.mark.parametrize(
    "steps",
    [
        (does(Sharded, module=MODEL), CALL),
        (does(Sharded, module=MODEL, blocks=False), CALL),
        (BLOCK_BY_BLOCK, ROOT, CALL),
        (does(Sharded, module=ATTENTION), does(Sharded, module=BLOCKS, blocks=True), ROOT, CALL),
        (does(Sharded, module=BLOCKS, blocks=True), ROOT, CALL),
        (does(Escaped, of=MODEL), ROOT, CALL),
    ],
)
def test_blocks_are_sharded_or_may_be(steps: tuple[Step, ...]) -> None:
    assert found(*steps) == []


def test_a_run_that_was_cut_off_while_sharding_is_not_judged() -> None:
    assert found(ROOT, ended=False) == []


def test_the_outer_module_is_sharded_first() -> None:
    assert found(ROOT, BLOCK_BY_BLOCK) == [("FS203", 1)]
    assert found(does(Sharded, module=BLOCKS), does(Sharded, module=ATTENTION), ROOT) == [("FS203", 1)]


def test_modules_side_by_side_have_no_order() -> None:
    assert found(does(Sharded, module=HEAD), BLOCK_BY_BLOCK, does(Sharded, module=OTHER)) == []


def test_a_module_that_is_sharded_again_under_a_condition_may_have_been_replaced() -> None:
    assert found(BLOCK_BY_BLOCK, ROOT, does(Sharded, module=HEAD, branch=Choice(1, True))) == []


def test_two_sides_of_one_branch_have_no_order() -> None:
    whole = does(Sharded, module=MODEL, branch=Choice(1, True))
    parts = does(Sharded, module=BLOCKS, branch=Choice(1, False))
    assert found(whole, parts) == []


def test_a_module_that_was_found_by_its_name_may_be_a_block_of_the_root() -> None:
    """The reader does not know where it lies; a module that was built elsewhere lies elsewhere."""
    built = does(ModuleBuilt, module=MODEL, cls="Net")
    by_name = does(Sharded, module=OTHER)
    assert found(built, by_name, ROOT, CALL) == []
    assert found(built, does(ModuleBuilt, module=OTHER, cls="Net"), by_name, ROOT, CALL) == [("FS202", 4)]


@pytest.mark.parametrize("origin", ["reader", "probe"])
def test_a_wrapper_goes_inside_of_the_sharding(origin: str) -> None:
    wrapped, sharded = does(ActivationsCheckpointed, module=BLOCKS), does(Sharded, module=BLOCKS)
    assert found(sharded, wrapped, origin=origin) == [("FS214", 2)]
    assert found(wrapped, sharded, origin=origin) == []
    assert found(does(Sharded, module=MODEL), wrapped, origin=origin) == []
    assert found(does(Sharded, module=ATTENTION), wrapped, origin=origin) == []


@pytest.mark.parametrize("dims", [("dp_shard", "dp_replicate"), ("fsdp", "ddp"), ("shard", "replicas")])
def test_the_dimensions_of_a_hybrid_mesh_are_named_the_wrong_way_round(dims: tuple[str, ...]) -> None:
    mesh = Ref(20, "mesh")
    created = does(MeshCreated, mesh=mesh, dims=dims)
    assert found(created, does(Sharded, module=MODEL, mesh=mesh, mesh_dims=dims)) == [("FS208", 2)]


def test_a_hybrid_mesh_that_no_call_gets() -> None:
    mesh = Ref(20, "mesh")
    dims = ("dp_replicate", "dp_shard")
    created = does(MeshCreated, mesh=mesh, dims=dims, shape=(2, 4))
    alone = does(Sharded, module=MODEL, everyone=True)
    assert found(created, alone) == [("FS208", 2)]
    assert found(created, does(Escaped, of=mesh), alone) == []
    assert found(created, does(Sharded, module=MODEL, mesh=mesh, mesh_dims=dims)) == []
    assert found(created, does(Sharded, module=BLOCKS, mesh=mesh), alone) == []
    for shape, names in (((1, 4), dims), ((None, None), dims), ((2, 4), ("dp_replicate", "tp")), ((4,), ("dp_shard",))):
        assert found(does(MeshCreated, mesh=mesh, dims=names, shape=shape), alone) == []


@pytest.mark.parametrize(
    "dims",
    [
        None,
        ("dp_shard",),
        ("dp_replicate", "dp_shard"),
        ("dp_shard_mod_ep", "dp_shard_in_ep"),
        ("inter", "intra"),
        ("dp_shard", "tp"),
        ("dp_shard", "dp_replicate", "tp"),
    ],
)
def test_the_dimensions_are_in_order_or_have_other_names(dims: tuple[str, ...] | None) -> None:
    assert found(does(Sharded, module=MODEL, mesh_dims=dims)) == []


def test_a_container_is_told_from_a_module_by_the_observer() -> None:
    assert found(does(Sharded, module=BLOCKS, container=True)) == [("FS210", 1)]
    assert found(does(Sharded, module=BLOCKS)) == []


def test_tensor_parallelism_comes_before_sharding() -> None:
    sharded = does(Sharded, module=MODEL)
    for module in (MODEL, BLOCKS, ATTENTION):
        assert found(sharded, does(Parallelised, module=module)) == [("FS211", 2)]
        assert found(does(Parallelised, module=module), sharded) == []


def test_what_is_not_sharded_yet_may_be_made_tensor_parallel() -> None:
    applied = does(Parallelised, module=MODEL)
    assert found(BLOCK_BY_BLOCK, applied) == []
    assert found(does(Sharded, module=OTHER), applied) == []
    assert found(does(Sharded, module=MODEL, branch=Choice(1, True)), applied) == []


def test_a_model_in_which_something_is_sharded_is_not_copied() -> None:
    copied = does(DeepCopied, module=MODEL)
    assert found(BLOCK_BY_BLOCK, copied) == [("FS217", 2)]
    assert found(ROOT, copied) == [("FS202", 1), ("FS217", 2)]
    assert found(copied, BLOCK_BY_BLOCK) == []
    assert found(does(Sharded, module=OTHER), copied) == []
    assert found(does(Sharded, module=BLOCKS, branch=Choice(1, True)), copied) == []
    assert found(BLOCK_BY_BLOCK, does(Escaped, of=MODEL), copied) == []


LOW, NONE_GIVEN = Precision(param="bfloat16", reduce="float32"), Precision()


@pytest.mark.parametrize(
    "block, root, manages, is_found",
    [
        (LOW, NONE_GIVEN, True, True),
        (NONE_GIVEN, LOW, True, True),
        (LOW, LOW, True, False),
        (NONE_GIVEN, NONE_GIVEN, True, False),
        (LOW, Precision(param="float32"), True, False),
        (LOW, None, True, False),
        (None, LOW, True, False),
        (LOW, NONE_GIVEN, False, False),
        (LOW, NONE_GIVEN, None, False),
    ],
)
def test_a_policy_is_passed_for_the_blocks_and_the_root(
    block: Precision | None, root: Precision | None, manages: bool | None, is_found: bool
) -> None:
    steps = does(Sharded, module=BLOCKS, precision=block), does(Sharded, module=MODEL, precision=root, manages=manages)
    assert found(*steps) == ([("FS207", 2)] if is_found else [])


def test_one_group_among_others_may_have_a_policy_of_its_own() -> None:
    steps = (
        does(Sharded, module=HEAD, precision=NONE_GIVEN),
        does(Sharded, module=BLOCKS, precision=LOW),
        does(Sharded, module=MODEL, precision=LOW, manages=True),
    )
    assert found(*steps) == []


def test_a_part_of_a_block_may_have_no_policy() -> None:
    steps = (
        does(Sharded, module=ATTENTION, precision=NONE_GIVEN),
        does(Sharded, module=BLOCKS, precision=LOW, manages=True),
        does(Sharded, module=MODEL, precision=LOW, manages=True),
    )
    assert found(*steps) == []


IGNORING = does(Sharded, module=MODEL, ignores=(HEAD,))
BUILT = does(OptimizerBuilt, optimizer=OPTIMIZER, cls="AdamW", modules=(MODEL,))
PARTLY = does(ForwardEntered, module=MODEL, sharded=True, uncovered=("head.weight",))
STEPPED = does(Stepped, optimizer=OPTIMIZER)
REDUCED = does(CollectiveCalled, op="all_reduce")


def test_ignored_parameters_are_stepped_as_each_rank_likes() -> None:
    assert found(IGNORING, BUILT, PARTLY, does(Backward), STEPPED, REDUCED) == [("FS216", 1)]
    of_head = does(OptimizerBuilt, optimizer=OPTIMIZER, cls="AdamW", modules=(HEAD,))
    assert found(IGNORING, of_head, PARTLY, does(Backward), STEPPED) == [("FS216", 1)]


@pytest.mark.parametrize(
    "steps",
    [
        (IGNORING, BUILT, PARTLY, does(Backward), REDUCED, STEPPED),
        (IGNORING, REDUCED, BUILT, PARTLY, does(Backward), STEPPED),
        (IGNORING, BUILT, CALL, does(Backward), STEPPED),
        (IGNORING, BUILT, does(ForwardEntered, module=MODEL, uncovered=("experts.0.weight",)), STEPPED),
        (IGNORING, does(OptimizerBuilt, optimizer=OPTIMIZER, cls="AdamW", modules=(BLOCKS,)), PARTLY, STEPPED),
        (IGNORING, BUILT, PARTLY, does(Escaped, of=MODEL), STEPPED),
        (IGNORING, BUILT, PARTLY, does(Escaped, of=HEAD), STEPPED),
        (ROOT, BUILT, PARTLY, STEPPED),
        (IGNORING, BUILT, PARTLY),
    ],
)
def test_ignored_parameters_are_reduced_or_not_trained(steps: tuple[Step, ...]) -> None:
    assert [f for f in found(*steps) if f[0] == "FS216"] == []


WORLD, DP, TP, OTHER_MESH = Ref(21, "mesh"), Ref(22, 'mesh["dp"]'), Ref(23, 'mesh["tp"]'), Ref(24, "tp_mesh")
BOTH = does(MeshCreated, mesh=WORLD, device_type="cuda", shape=(None, 2), dims=("dp", "tp"))
TP_ALONE = does(MeshCreated, mesh=OTHER_MESH, device_type="cuda", shape=(8,), dims=("tp",))
OVER_OTHER = does(Parallelised, module=BLOCKS, mesh=OTHER_MESH, root=OTHER_MESH)
OVER_SLICE = does(Parallelised, module=BLOCKS, mesh=TP, root=WORLD)
SHARDED_OVER_DP = does(Sharded, module=BLOCKS, mesh=DP, root=WORLD)


def test_two_meshes_that_overlap() -> None:
    assert found(BOTH, TP_ALONE, OVER_OTHER, SHARDED_OVER_DP, SHARDED_OVER_DP) == [("FS215", 4)]
    assert found(BOTH, OVER_SLICE, does(Sharded, module=BLOCKS, everyone=True)) == [("FS215", 3)]
    whole = does(Sharded, module=MODEL, mesh=OTHER_MESH, root=OTHER_MESH)
    assert found(TP_ALONE, BOTH, OVER_SLICE, whole) == [("FS215", 4)]
    (finding,) = judge([trace(BOTH, TP_ALONE, OVER_OTHER, SHARDED_OVER_DP)])
    assert [place.line for place, _ in finding.related] == [3, 1, 2]


@pytest.mark.parametrize(
    "steps",
    [
        (BOTH, OVER_SLICE, SHARDED_OVER_DP),
        (BOTH, TP_ALONE, OVER_OTHER, does(Sharded, module=HEAD, mesh=DP, root=WORLD)),
        (TP_ALONE, OVER_OTHER, SHARDED_OVER_DP),
        (BOTH, OVER_OTHER, SHARDED_OVER_DP),
        (BOTH, TP_ALONE, OVER_OTHER, does(Sharded, module=BLOCKS)),
        (BOTH, OVER_SLICE, does(Sharded, module=MODEL, everyone=True, ignores=(BLOCKS,))),
        (BOTH, does(Parallelised, module=BLOCKS), does(Sharded, module=BLOCKS, everyone=True)),
        (
            does(MeshCreated, mesh=OTHER_MESH, device_type="cuda", shape=(None, 2), dims=("dp", "tp")),
            BOTH,
            does(Parallelised, module=BLOCKS, mesh=TP, root=OTHER_MESH),
            SHARDED_OVER_DP,
        ),
        (
            does(MeshCreated, mesh=OTHER_MESH, shape=(4, 2), dims=("pp", "tp")),
            BOTH,
            does(Parallelised, module=BLOCKS, mesh=TP, root=OTHER_MESH),
            SHARDED_OVER_DP,
        ),
    ],
)
def test_meshes_that_fit_or_are_not_known(steps: tuple[Step, ...]) -> None:
    assert [f for f in found(*steps) if f[0] == "FS215"] == []


COMPILED = does(Compiled, module=MODEL, wrapped=True)


def test_a_sharded_model_is_compiled_as_a_whole() -> None:
    assert found(BLOCK_BY_BLOCK, ROOT, COMPILED) == [("FS213", 3)]
    assert found(BLOCK_BY_BLOCK, ROOT, does(Compiled, module=MODEL, wrapped=False, branch=Choice(1, True))) == [
        ("FS213", 3)
    ]


@pytest.mark.parametrize(
    "steps",
    [
        (COMPILED, BLOCK_BY_BLOCK, ROOT),
        (does(Sharded, module=MODEL), COMPILED),
        (BLOCK_BY_BLOCK, COMPILED, ROOT),
        (BLOCK_BY_BLOCK, ROOT, does(Compiled, module=BLOCKS, wrapped=False)),
        (BLOCK_BY_BLOCK, ROOT, does(Compiled, module=OTHER, wrapped=True)),
        (BLOCK_BY_BLOCK, does(Sharded, module=MODEL, branch=Choice(1, True)), COMPILED),
    ],
)
def test_blocks_are_compiled_or_what_is_not_sharded(steps: tuple[Step, ...]) -> None:
    assert [f for f in found(*steps) if f[0] == "FS213"] == []


MOVED = does(AcceleratorUsed, module=MODEL)


def test_a_model_is_on_each_gpu_before_it_is_sharded() -> None:
    assert found(MOVED, BLOCK_BY_BLOCK, ROOT) == [("FS218", 1)]
    (finding,) = judge([trace(MOVED, BLOCK_BY_BLOCK, ROOT)])
    assert "Leave it where it was built" in finding.message
    emptied = (
        does(AcceleratorUsed, module=MODEL, at=Location("a.py", 9)),
        does(Materialised, module=MODEL, at=Location("a.py", 9)),
    )
    (finding,) = judge([trace(*emptied, BLOCK_BY_BLOCK, ROOT)])
    assert "meta device" in finding.message


@pytest.mark.parametrize(
    "steps",
    [
        (does(AcceleratorUsed), BLOCK_BY_BLOCK, ROOT),
        (BLOCK_BY_BLOCK, MOVED, ROOT),
        (BLOCK_BY_BLOCK, ROOT, MOVED),
        (MOVED, BLOCK_BY_BLOCK, does(Sharded, module=MODEL)),
        (does(AcceleratorUsed, module=BLOCKS), does(Sharded, module=BLOCKS, blocks=True), ROOT),
        (does(AcceleratorUsed, module=OTHER), BLOCK_BY_BLOCK, ROOT),
        (MOVED, does(Escaped, of=MODEL), BLOCK_BY_BLOCK, ROOT),
        (does(AcceleratorUsed, module=MODEL, only="rank == 0"), BLOCK_BY_BLOCK, ROOT),
        (does(AcceleratorUsed, module=MODEL, branch=Choice(1, True)), BLOCK_BY_BLOCK, ROOT),
    ],
)
def test_parts_are_moved_or_nothing_is_before_it_is_sharded(steps: tuple[Step, ...]) -> None:
    assert [f for f in found(*steps) if f[0] == "FS218"] == []
