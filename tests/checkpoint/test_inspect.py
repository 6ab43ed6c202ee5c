"""The verb, on checkpoints of one process and of real ranks: verdicts, exit codes, bounded text, bounded memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch

from ..commands import assert_refused, fsdp2, fsdp2_json, measured
from ..runs import run_script
from ..schemas import INSPECT
from .saves import digest_in_memory, save

WEIGHT = torch.arange(120.0).reshape(12, 10)
MEMORY = 200_000_000  # bytes that inspecting may take, whatever the checkpoint's size


@pytest.fixture
def two(tmp_path: Path) -> Path:
    """The folder of `a` and `b`, equal but for their blocks, and of `c`, in which one element differs."""
    state = {"model": {"w": WEIGHT, "b": torch.ones(4)}, "lr": 0.1}
    save(tmp_path / "a", state, {"model.w": [[5, 7], [10]]})
    save(tmp_path / "b", state, {"model.w": [[12], [4, 6]]})
    other = WEIGHT.clone()
    other[3, 4] += 2
    save(tmp_path / "c", {**state, "model": {"w": other, "b": torch.ones(4)}})
    return tmp_path


def document(*arguments: str, cwd: Path) -> Any:
    found = fsdp2_json("inspect", *arguments, cwd=cwd)
    jsonschema.validate(found, INSPECT)
    return found


def test_a_whole_checkpoint_exits_with_0_and_says_what_it_holds(two: Path) -> None:
    process = fsdp2("inspect", "a", cwd=two)
    assert (process.returncode, process.stderr) == (0, "")
    head, totals, *_ = process.stdout.splitlines()
    assert head == "a: whole (DCP layout)"
    assert totals.startswith("  2 tensors, 496 B; 1 object; 2 files; DCP 1.0.0")
    assert "lr: 0.1" in process.stdout


def test_the_document_has_every_chunk_and_its_place(two: Path) -> None:
    found = document("a", "--digest", "--verbose", cwd=two)
    (checkpoint,) = found["checkpoints"]
    tensors = {tensor["key"]: tensor for tensor in checkpoint["tensors"]}
    assert [chunk["offsets"] for chunk in tensors["model.w"]["chunks"]] == [[0, 0], [5, 0]]
    assert tensors["model.w"]["digest"] == digest_in_memory(WEIGHT)
    assert checkpoint["objects"][0]["value"] == "0.1"
    for chunk in tensors["model.w"]["chunks"]:
        data = (two / "a" / chunk["file"]).read_bytes()[chunk["offset"] : chunk["offset"] + chunk["length"]]
        assert data.startswith(b"PK")
    assert {total["part"]: total["bytes"] for total in checkpoint["totals"]} == {"model": 496, "lr": 0}


def test_keys_show_the_chunks_of_those_alone(two: Path) -> None:
    process = fsdp2("inspect", "a", "--keys", "*.w", cwd=two)
    assert "at [5, 0], [7, 10]: __0_" in process.stdout
    assert "model.b" not in process.stdout
    assert_refused(fsdp2("inspect", "a", "--keys", "model", cwd=two), "--keys model", "matches none", "model.w")


def test_equal_checkpoints_of_different_blocks_exit_with_0(two: Path) -> None:
    process = fsdp2("inspect", "a", "--against", "b", cwd=two)
    assert process.returncode == 0, process.stderr
    assert process.stdout.splitlines()[-1] == "against b: equal (3 keys)"
    assert document("a", "--against", "b", cwd=two)["against"] == {
        **{"path": "b", "equal": True, "keys": 3, "differences": []}
    }


def test_a_difference_exits_with_1_and_says_where_it_is_largest(two: Path) -> None:
    process = fsdp2("inspect", "a", "--against", "c", cwd=two)
    assert process.returncode == 1
    assert process.stdout.splitlines()[-2:] == [
        "against c: 1 of 3 keys differ",
        "  model.w: 1 of 120 elements differ, at most by 2, at [3, 4]: 34.0 here, 36.0 there",
    ]
    (difference,) = document("a", "--against", "c", cwd=two)["against"]["differences"]
    assert (difference["largest"], difference["at"]) == (2.0, [3, 4])
    assert fsdp2("inspect", "a", "--against", "c", "--keys", "*.b", cwd=two).returncode == 0


def test_what_is_not_whole_exits_with_1(two: Path) -> None:
    (two / "a" / "__0_0.distcp").unlink()
    process = fsdp2("inspect", "a", "--digest", cwd=two)
    assert process.returncode == 1
    assert process.stdout.startswith("a: NOT WHOLE")
    assert "problem: __0_0.distcp: missing" in process.stdout
    assert document("a", cwd=two)["whole"] is False


def test_a_tensor_without_a_digest_exits_with_1_and_says_why(two: Path) -> None:
    file = two / "c" / "__0_0.distcp"
    data = bytearray(file.read_bytes())
    data[-100:] = bytes(100)  # the end of the last tensor's archive, which the length does not show
    file.write_bytes(data)
    process = fsdp2("inspect", "c", "--digest", cwd=two)
    assert process.returncode == 1
    assert "no digest: c/__0_0.distcp" in process.stderr
    assert fsdp2("inspect", "c", cwd=two).returncode == 0


def test_a_folder_of_steps_shows_the_latest_whole(two: Path) -> None:
    for number, name in enumerate("abc"):
        (two / name).rename(two / f"step-{number}")
    (two / "step-2" / ".metadata").unlink()
    process = fsdp2("inspect", ".", cwd=two)
    assert process.returncode == 1
    assert process.stdout.splitlines()[0] == ".: 3 checkpoints, the latest whole is step-1"
    found = document(".", cwd=two)
    assert [step["whole"] for step in found["steps"]] == [True, True, False]
    assert (found["latest"], found["checkpoints"][0]["path"]) == ("step-1", "step-1")


def test_what_cannot_be_read_exits_with_2_in_one_line(two: Path) -> None:
    (two / "empty").mkdir()
    assert_refused(fsdp2("inspect", "empty", cwd=two), "empty", "no checkpoint")
    assert_refused(fsdp2("inspect", "nowhere", cwd=two), "nowhere", "does not exist")
    assert_refused(fsdp2("inspect", "", cwd=two / "a"), "''", "does not exist")
    assert_refused(fsdp2("inspect", "a", "--against", "empty", cwd=two), "empty")
    metadata = two / "a" / ".metadata"
    metadata.write_bytes(metadata.read_bytes()[:100])
    assert_refused(fsdp2("inspect", "a", cwd=two), "a/.metadata", "cut short or damaged")


def test_text_is_bounded(tmp_path: Path) -> None:
    save(
        tmp_path / "a", {"model": {f"w{n}": torch.zeros(1) for n in range(300)}, "o": {f"n{n}": n for n in range(300)}}
    )
    assert len(fsdp2("inspect", "a", cwd=tmp_path).stdout.splitlines()) < 100
    assert len(fsdp2("inspect", "a", "--verbose", cwd=tmp_path).stdout.splitlines()) > 900


def test_an_object_that_asks_for_more_than_plain_values_is_opaque(tmp_path: Path) -> None:
    save(tmp_path / "a", {"path": Path("x"), "tensors": (torch.zeros(2, 3),), "set": ({1, 2},)})
    process = fsdp2("inspect", "a", cwd=tmp_path)
    assert process.returncode == 0
    assert "path: <opaque: asks for pathlib.PosixPath>" in process.stdout
    assert "<tensor float32 [2, 3]>" in process.stdout
    assert "set: ({1, 2},)" in process.stdout


RANKS = """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    torch.manual_seed(1)
    whole = {"w": torch.randn(37, 23), "v": torch.randn(5)}
    plans = {"rows": ((4,), [Shard(0)]), "columns": ((4,), [Shard(1)])}
    plans |= {"hybrid": ((2, 2), [Replicate(), Shard(0)]), "grid": ((2, 2), [Shard(0), Shard(1)])}
    for name, (sizes, placements) in plans.items():
        mesh = init_device_mesh("cpu", sizes)
        flat = [Replicate() if placement == Shard(1) else placement for placement in placements]
        state = {"w": distribute_tensor(whole["w"], mesh, placements), "v": distribute_tensor(whole["v"], mesh, flat)}
        dcp.save({**state, "step": 7}, checkpoint_id=name)
    if rank == 0:
        dcp.save({**whole, "step": 7}, checkpoint_id="one", no_dist=True)
        block = fully_shard(Block())
    else:
        block = fully_shard(Block())
    optimizer = torch.optim.AdamW(block.parameters())
    train(block, optimizer)
    from torch.distributed.checkpoint.state_dict import get_state_dict
    model, optim = get_state_dict(block, optimizer)
    dcp.save({"model": model, "optimizer": optim}, checkpoint_id="fsdp")
"""


@pytest.mark.slow
def test_checkpoints_of_real_ranks_on_every_mesh_are_whole_and_equal(tmp_path: Path) -> None:
    run = run_script(tmp_path, RANKS, nproc=4)
    assert run.succeeded, [(end.code, end.output) for end in run.ends]
    cwd = tmp_path / "cwd"
    digests = {}
    for name in ("one", "rows", "columns", "hybrid", "grid", "fsdp"):
        found = document(name, "--digest", cwd=cwd)
        assert found["whole"], found
        (checkpoint,) = found["checkpoints"]
        assert len(checkpoint["ranks"]) == (1 if name == "one" else 4)
        digests[name] = {tensor["key"]: tensor["digest"] for tensor in checkpoint["tensors"]}
    fsdp = digests.pop("fsdp")
    assert "optimizer.state.up.weight.exp_avg" in fsdp
    assert all(fsdp.values())
    assert all(found == digests["one"] for found in digests.values())
    process = fsdp2("inspect", "columns", "--against", "grid", cwd=cwd)
    assert process.returncode == 0, process.stdout + process.stderr


@pytest.mark.slow
def test_memory_stays_bounded_on_a_checkpoint_of_several_times_that(tmp_path: Path) -> None:
    """Half a gigabyte in columns, so that every band needs every chunk, against the same in rows; and one, sparse."""
    tensor = torch.zeros(8_000, 16_000)
    save(tmp_path / "a", {"w": tensor}, {"w": [[8_000], [2_000] * 8]})
    tensor[7_000, 15_000] = 1
    save(tmp_path / "b", {"w": tensor}, {"w": [[2_000] * 4, [16_000]]})
    code, most = measured("inspect", "a", "--digest", "--against", "b", cwd=tmp_path)
    assert code == 1
    assert most < MEMORY
    for name in "ab":
        for file in (tmp_path / name).iterdir():
            file.unlink()
    table = json.dumps({"w": {"dtype": "F16", "shape": [2**29], "data_offsets": [0, 2**30]}}).encode()
    sparse = tmp_path / "a" / "model.safetensors"
    with sparse.open("wb") as file:
        file.write(len(table).to_bytes(8, "little") + table)
        file.truncate(8 + len(table) + 2**30)
    code, most = measured("inspect", "a", "--digest", cwd=tmp_path)
    assert code == 0
    assert most < MEMORY


@pytest.mark.slow
def test_memory_for_a_hundred_thousand_chunks_stays_bounded(tmp_path: Path) -> None:
    import pickle

    from torch.distributed.checkpoint.filesystem import _StorageInfo
    from torch.distributed.checkpoint.metadata import (
        ChunkStorageMetadata,
        Metadata,
        MetadataIndex,
        TensorProperties,
        TensorStorageMetadata,
    )

    tensors, places = {}, {}
    for number in range(400):
        key, shape = f"layers.{number}.weight", torch.Size([4096, 4096])
        chunks = [ChunkStorageMetadata(torch.Size([16 * rank, 0]), torch.Size([16, 4096])) for rank in range(256)]
        tensors[key] = TensorStorageMetadata(TensorProperties(torch.float32), shape, chunks)
        for rank, chunk in enumerate(chunks):
            places[MetadataIndex(key, chunk.offsets, rank)] = _StorageInfo(
                f"__{rank}_0.distcp", number * 263_000, 263_000
            )
    (tmp_path / ".metadata").write_bytes(pickle.dumps(Metadata(tensors, storage_data=places)))
    for rank in range(256):
        with (tmp_path / f"__{rank}_0.distcp").open("wb") as file:
            file.truncate(400 * 263_000)
    code, most = measured("inspect", ".", cwd=tmp_path)
    assert code == 0
    assert most < MEMORY
