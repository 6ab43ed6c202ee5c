"""Formulas: chunks as torch makes them, write items as DCP makes them, intervals as the papers have them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from pytorch_fsdp2_dcp.validate.errors import UserError
from pytorch_fsdp2_dcp.validate.planning.checkpoint import checkpoint
from pytorch_fsdp2_dcp.validate.planning.entries import Entry, entries, local_plan
from pytorch_fsdp2_dcp.validate.planning.fits import propose
from pytorch_fsdp2_dcp.validate.planning.interval import interval, lost_share
from pytorch_fsdp2_dcp.validate.planning.memory import Training, estimate, optimizer_bytes, parameter_bytes
from pytorch_fsdp2_dcp.validate.planning.mesh import Mesh, chunk, resolve_mesh
from pytorch_fsdp2_dcp.validate.planning.model import Buffer, Model, Parameter
from pytorch_fsdp2_dcp.validate.planning.scale import Planning, planning_at, simulate
from pytorch_fsdp2_dcp.validate.planning.transformer import from_config, from_numbers
from torch.distributed.checkpoint.default_planner import create_default_local_save_plan
from torch.distributed.checkpoint.planner import WriteItem
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

LLAMA_3_8B = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "tie_word_embeddings": False,
}


def llama() -> Model:
    shape = from_config(LLAMA_3_8B, "config.json")
    return Model("llama", tuple(Parameter(*weight) for weight in shape.weights()), transformer=shape)


def training(**other: Any) -> Training:
    return replace(Training("fp32", "adamw", micro_batch=1, seq_len=2048, checkpointing=False), **other)


@pytest.mark.parametrize(("length", "parts"), [(10, 4), (3, 8), (8, 8), (9, 8), (1, 1)])
def test_chunks_are_those_of_torch(length: int, parts: int) -> None:
    chunks = torch.arange(length).chunk(parts)
    mine = [chunk(length, parts, index) for index in range(parts)]
    assert [range(offset, offset + size) for offset, size in mine if size] == [
        range(int(part[0]), int(part[-1]) + 1) for part in chunks
    ]


@pytest.mark.parametrize("rank", [0, 3, 7])
def test_write_items_are_those_of_dcp(rank: int) -> None:
    """Of DTensors on a fake world of 2 x 2 x 2 ranks: rows, some of them empty, and rows of what tp has split."""
    model = Model(
        "net",
        (
            Parameter(("wide",), (16, 6), "", 1),
            Parameter(("tall",), (3, 5), "", None),
            Parameter(("both",), (8, 4), "", 0),
        ),
        (Buffer("scale", 12, persistent=True), Buffer("mask", 12, persistent=False)),
    )
    dist.init_process_group("fake", rank=rank, world_size=8, store=FakeStore())
    try:
        ranks = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("dp_replicate", "dp_shard", "tp"))
        state: dict[str, object] = {}
        mesh = Mesh(2, 2, 2, 8)
        for entry in entries(model, "adamw"):
            if entry.shape is None:
                state[entry.key] = [{"lr": 0.1}]
            elif not entry.sharded:
                dtype = torch.uint8 if entry.element == 1 else torch.float32
                state[entry.key] = torch.zeros(entry.shape, dtype=dtype)
            elif entry.split == 0:
                continue  # its placement is private to torch: FSDP makes it
            else:
                placements = (Replicate(), Shard(0), Replicate() if entry.split is None else Shard(entry.split))
                whole = DTensor.from_local(torch.zeros(entry.shape), ranks, [Replicate()] * 3, run_check=False)
                state[entry.key] = whole.redistribute(placements=placements)
        expected = create_default_local_save_plan(state, is_coordinator=rank == 0).items
    finally:
        dist.destroy_process_group()
    mine = local_plan([entry for entry in entries(model, "adamw") if entry.key in state], mesh, rank).items
    assert sorted(map(known, mine), key=str) == sorted(map(known, expected), key=str)


def known(item: WriteItem) -> tuple[object, ...]:
    data = item.tensor_data
    if data is None:
        return item.index.fqn, item.type
    return item.index.fqn, item.type, item.index.offset, data.chunk, data.size, data.properties.dtype


def test_parameters_of_a_config_are_those_of_the_model() -> None:
    """Llama 3 8B has 8,030,261,248 parameters in 291 tensors, as its model card and index say."""
    model = llama()
    assert (model.numel, len(model.parameters)) == (8_030_261_248, 291)
    assert sum(parameter_bytes(model, Mesh(1, 8, 1, 8), rank) for rank in range(8)) == 4 * model.numel
    assert sum(parameter_bytes(model, Mesh(1, 4, 2, 8), rank) for rank in range(8)) == pytest.approx(
        4 * model.numel, rel=1e-3
    )
    assert optimizer_bytes(model, Mesh(1, 8, 1, 8), "adamw") == 2 * parameter_bytes(model, Mesh(1, 8, 1, 8)) + 4 * 291
    assert optimizer_bytes(model, Mesh(1, 8, 1, 8), "sgd") == parameter_bytes(model, Mesh(1, 8, 1, 8))


def test_numbers_become_the_nearest_model() -> None:
    shape = from_numbers(params=8_030_261_248, layers=32, hidden=4096, heads=32, kv_heads=8, vocab=128256)
    assert shape == from_config(LLAMA_3_8B, "config.json")


def test_memory_falls_with_shards_and_with_checkpointing() -> None:
    model = llama()
    peaks = {
        (shards, full): estimate(model, Mesh(1, shards, 1, 8), Training("bf16", "adamw", 1, 4096, full)).peak
        for shards in (8, 64)
        for full in (False, True)
    }
    assert peaks[64, True] < peaks[64, False] < peaks[8, False]
    assert peaks[8, True] < peaks[8, False]


def test_young_and_daly() -> None:
    """A cost of 5 min and 6 h between failures: an hour by Young, 56.6 min by Daly, which the least of the curve is."""
    found = interval(cost=300, save=300, mtbf_of_a_node=24 * 3600, nodes=4, restart=600)
    assert found.mtbf == 6 * 3600
    assert found.young == pytest.approx(3600)
    best = min(range(60, 3 * 3600), key=lambda every: lost_share(every, 300, found.mtbf, 600))
    assert found.daly == pytest.approx(best, rel=0.01)
    assert 0.15 < found.lost < 0.2
    assert interval(cost=5, save=5000, mtbf_of_a_node=3600, nodes=1, restart=1).every == 5000
    assert interval(cost=900, save=900, mtbf_of_a_node=300, nodes=1, restart=1).daly == 300
    assert math.isclose(lost_share(1e9, 1, 1, 1), 1.0)


def test_replicas_are_planned_by_all_and_written_once() -> None:
    model = Model("net", (Parameter(("weight",), (64, 8), ""),))
    state = entries(model, "sgd")
    planning = simulate(state, Mesh(4, 2, 1, 8))
    assert planning.planned == 8 * len(state)
    assert planning.written == 2 * 2 + 1  # two parts of two tensors, and the parameter groups
    assert planning.cached_received is None or planning.cached_received < planning.received
    assert checkpoint(model, Mesh(4, 2, 1, 8), "sgd").elements == 2 * 64 * 8 * 4


@pytest.mark.slow
def test_larger_worlds_are_extrapolated_and_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytorch_fsdp2_dcp.validate.planning.scale.ITEMS_LIMIT", 25_000)
    model = Model("net", tuple(Parameter((f"weight{index}",), (4096, 8), "") for index in range(40)))
    rows = planning_at(entries(model, "adamw"), Mesh(1, 8, 1, 8), "dp_shard", (32, 64, 128, 512))
    assert [row.measured for row in rows] == [True, True, True, False]
    assert rows[3].metadata == pytest.approx(4 * rows[2].metadata, rel=0.2)
    assert rows[3].seconds > rows[2].seconds


@pytest.mark.slow
def test_a_large_model_is_measured_in_small_worlds_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which bounds memory; the worlds that are shown are extrapolated from them."""
    items, simulated = 160, []

    def noted(state: Sequence[Entry], mesh: Mesh) -> Planning:
        simulated.append(mesh.world)
        return simulate(state, mesh)

    monkeypatch.setattr("pytorch_fsdp2_dcp.validate.planning.scale.ITEMS_LIMIT", 32 * items)
    monkeypatch.setattr("pytorch_fsdp2_dcp.validate.planning.scale.simulate", noted)
    model = Model("net", tuple(Parameter((f"weight{index}",), (4096, 8), "") for index in range(items // 4)))
    rows = planning_at(entries(model, "adamw")[:items], Mesh(1, 8, 1, 8), "dp_shard")
    assert simulated == [16, 32]
    assert [row.world for row in rows] == [2**power for power in range(6, 15)]
    assert not any(row.measured for row in rows)


@pytest.mark.slow
def test_worlds_are_those_that_the_mesh_can_grow_to() -> None:
    state = entries(Model("net", (Parameter(("weight",), (64, 8), ""),)), "sgd")
    assert [row.world for row in planning_at(state, Mesh(3, 2, 1, 6), "dp_shard", (64, 128, 256))] == [96, 192]
    assert [row.world for row in planning_at(state, Mesh(1, 8, 3, 8), "dp_shard", (6, 8, 12))] == [6, 12]


def test_meshes_that_fit_come_best_first_and_say_why() -> None:
    """Without activation checkpointing first; of these, those that send less between nodes, then inside one."""
    model, mesh = llama(), Mesh(1, 16, 1, 8)
    found, least = propose(
        model, mesh, training(precision="bf16"), 10**12, lambda *way: estimate(model, *way), tp=(1, 2, 4, 8)
    )
    assert least is None
    order = [(proposal.checkpointing, proposal.across, proposal.within) for proposal in found]
    assert order == sorted(order)
    assert len({(str(proposal.mesh), proposal.checkpointing) for proposal in found}) == len(found) == 5
    assert all(proposal.mesh.world == 16 for proposal in found)
    assert "only gradients cross" in found[0].reason
    nothing, least = propose(model, mesh, training(), 10**6, lambda *way: estimate(model, *way), tp=(1, 2, 4, 8))
    assert (nothing, least is not None and least.checkpointing) == ([], True)


@pytest.mark.parametrize(
    ("mesh", "nodes", "word"),
    [("dp_shard=3,tp=-1", 1, "divide"), ("dp_shard=4", 2, "4 ranks"), ("shard=4", None, "no mesh dim")],
)
def test_a_mesh_that_cannot_be_is_refused(mesh: str, nodes: int | None, word: str) -> None:
    with pytest.raises(UserError, match=word):
        resolve_mesh(mesh, nodes, 8)


def test_a_mesh_fills_its_nodes() -> None:
    assert resolve_mesh("dp_replicate=2,dp_shard=-1", 4, 8) == Mesh(2, 16, 1, 8)
    assert resolve_mesh("dp_shard=12", None, 8).nodes == 2
    assert resolve_mesh("dp_shard=4,tp=2", None, 8).coordinate(5) == (0, 2, 1)
