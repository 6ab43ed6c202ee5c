"""Whole or not, and exactly why; what a folder is, and who wrote it."""

from __future__ import annotations

import os
import pickle
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from pytorch_fsdp2_dcp.validate.checkpoint.folders import open_folder
from pytorch_fsdp2_dcp.validate.checkpoint.layouts import Checkpoint, Parts, Steps, survey
from pytorch_fsdp2_dcp.validate.errors import UserError

from .saves import digest_in_memory, look, save

WEIGHT = torch.arange(120.0).reshape(12, 10)
DATA = "__0_0.distcp"


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A whole checkpoint in two files."""
    state = {"model": {"w": WEIGHT, "b": torch.ones(4)}, "step": 3}
    return save(tmp_path / "step-3", state, {"model.w": [[5, 7], [10]]})


def kinds(folder: Path) -> list[str]:
    return sorted({remark.kind for remark in look(folder).problems})


def notes(folder: Path) -> list[str]:
    return [remark.kind for remark in look(folder).notes]


def test_a_checkpoint_as_saved_is_whole(saved: Path) -> None:
    assert (kinds(saved), notes(saved)) == ([], [])


def test_a_file_that_is_missing_is_named(saved: Path) -> None:
    (saved / DATA).unlink()
    (remark,) = look(saved).problems
    assert remark.kind == "file-missing"
    assert DATA in remark.message


def test_a_file_that_is_one_byte_too_short_is_named_with_both_lengths(saved: Path) -> None:
    size = (saved / DATA).stat().st_size
    os.truncate(saved / DATA, size - 1)
    (remark,) = look(saved).problems
    assert (remark.kind, remark.message) == ("file-short", f"{DATA}: {size - 1} bytes, {size} needed")


def test_without_metadata_the_save_did_not_finish(saved: Path) -> None:
    (saved / ".metadata").rename(saved / ".metadata.tmp")
    assert (kinds(saved), notes(saved)) == (["no-metadata"], ["temporary"])
    (saved / DATA).unlink()
    (saved / "__0_1.distcp").unlink()
    assert kinds(saved) == ["no-metadata"]


def test_temporary_metadata_beside_metadata_tells_of_a_later_save_that_died(saved: Path) -> None:
    shutil.copy(saved / ".metadata", saved / ".metadata.tmp")
    (note,) = look(saved).notes
    assert (kinds(saved), note.kind) == ([], "temporary")
    assert "a later save" in note.message


def test_files_of_more_ranks_than_the_metadata_knows_are_left_over_from_a_larger_world(saved: Path) -> None:
    for rank in (4, 5):
        shutil.copy(saved / DATA, saved / f"__{rank}_0.distcp")
    (note,) = look(saved).notes
    assert (kinds(saved), note.kind) == ([], "left-over")
    assert "__4_0.distcp, __5_0.distcp: left over from a larger world size (ranks to 5)" in note.message


def test_a_link_that_leads_out_is_reported_and_not_read(saved: Path) -> None:
    (saved / DATA).rename(saved.parent / "outside")
    (saved / DATA).symlink_to("../outside")
    assert kinds(saved) == ["file-outside"]


def test_a_link_within_the_folder_is_a_file(saved: Path) -> None:
    (saved / DATA).rename(saved / "moved")
    (saved / DATA).symlink_to("moved")
    assert kinds(saved) == []


def test_a_pipe_is_not_waited_for(saved: Path) -> None:
    (saved / DATA).unlink()
    os.mkfifo(saved / DATA)
    assert kinds(saved) == ["file-outside"]


def edit(saved: Path, change: Any) -> None:
    metadata = pickle.loads((saved / ".metadata").read_bytes())
    change(metadata)
    (saved / ".metadata").write_bytes(pickle.dumps(metadata))


def test_elements_in_no_chunk_are_counted(saved: Path) -> None:
    edit(saved, lambda metadata: metadata.state_dict_metadata["model.w"].chunks.pop())
    (remark,) = look(saved).problems
    assert (remark.kind, remark.message) == ("gap", "model.w: 70 of 120 elements are in no chunk")


def test_a_chunk_and_an_object_in_no_file_are_named(saved: Path) -> None:
    edit(saved, lambda metadata: metadata.storage_data.clear())
    assert kinds(saved) == ["no-place"]
    assert len(look(saved).problems) == 3


@pytest.mark.parametrize("kind", [Path, str])
def test_where_it_was_saved_is_told_as_a_path_is_written(kind: type, saved: Path) -> None:
    edit(saved, lambda metadata: setattr(metadata.storage_meta, "checkpoint_id", kind("/runs/step-1")))
    found = look(saved).contents
    assert found is not None
    assert found.saved_to == "/runs/step-1"


@pytest.mark.parametrize("version", ["2.0.0", "10", "one"])
def test_newer_metadata_is_refused(version: str, saved: Path) -> None:
    edit(saved, lambda metadata: setattr(metadata, "version", version))
    with pytest.raises(UserError, match="reads versions up to 1"):
        look(saved)


def test_metadata_of_an_older_torch_lacks_version_and_meta(saved: Path) -> None:
    def age(metadata: Any) -> None:
        del metadata.__dict__["version"], metadata.__dict__["storage_meta"]

    edit(saved, age)
    found = look(saved).contents
    assert found is not None
    assert (found.version, found.saved_to, kinds(saved)) == (None, None, [])


def test_what_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "model.pt").write_text("")
    for name, words in (
        ("file", "is a file"),
        ("none", "does not exist"),
        ("empty", "no checkpoint"),
        ("other", "no chec"),
    ):
        with pytest.raises(UserError, match=words):
            survey(open_folder(str(tmp_path / name)))


def test_metadata_that_each_rank_wrote_is_merged(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save({"w": WEIGHT, "step": 1}, checkpoint_id=tmp_path / "a", no_dist=True, use_collectives=False)
    assert (tmp_path / "a" / "__0.metadata").exists()
    shutil.copy(tmp_path / "a" / "__0.metadata", tmp_path / "a" / "__1.metadata")
    found = look(tmp_path / "a")
    assert found.contents is not None
    assert (kinds(tmp_path / "a"), len(found.contents.tensors["w"].chunks)) == ([], 1)


def test_of_a_folder_of_steps_the_latest_whole_is_found(saved: Path) -> None:
    run = saved.parent
    shutil.copytree(saved, run / "step-12")
    shutil.copytree(saved, run / "step-20")
    (run / "step-20" / DATA).unlink()
    (run / "step-24").mkdir()  # a save that died before it wrote
    (run / "logs").mkdir()
    shutil.copytree(saved, run / "step-22")
    (run / "step-22" / ".metadata").write_bytes(b"")
    (run / "latest").symlink_to("step-20")
    found = survey(open_folder(str(run)))
    assert isinstance(found, Steps)
    assert [(step.number, step.whole) for step in found.steps] == [
        *((None, False), (3, True), (12, True), (20, False), (22, False), (24, False))
    ]
    assert found.latest is not None
    assert found.latest.name == "step-12"
    assert [step.problems[0].kind for step in found.steps[3:]] == ["file-missing", "unreadable", "empty"]


def test_a_link_to_a_folder_is_followed(saved: Path) -> None:
    (saved.parent / "run").mkdir()
    (saved.parent / "run" / "step-3").symlink_to("../step-3")
    found = survey(open_folder(str(saved.parent / "run")))
    assert isinstance(found, Steps)
    assert [step.whole for step in found.steps] == [True]


def test_links_out_of_a_folder_of_nothing_else_are_named(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "model.safetensors").write_bytes(b"")
    (tmp_path / "a" / "model.safetensors").symlink_to("../model.safetensors")
    with pytest.raises(UserError, match="links out of the folder are not followed"):
        survey(open_folder(str(tmp_path / "a")))


def test_accelerates_folders_are_the_parts_of_one_checkpoint(tmp_path: Path) -> None:
    for step in (1, 2):
        folder = tmp_path / f"checkpoint-{step}"
        save(folder / "pytorch_model_fsdp_0", {"model": {"w": WEIGHT}})
        save(folder / "optimizer_0", {"optimizer": {"state": {"w": {"exp_avg": WEIGHT}}}})
    found = survey(open_folder(str(tmp_path / "checkpoint-1")))
    assert isinstance(found, Parts)
    assert [(part.layout, part.folder.name) for part in found.checkpoints] == [
        *(("Accelerate", "optimizer_0"), ("Accelerate", "pytorch_model_fsdp_0"))
    ]
    (tmp_path / "checkpoint-2" / "optimizer_0" / ".metadata").unlink()
    steps = survey(open_folder(str(tmp_path)))
    assert isinstance(steps, Steps)
    assert [step.whole for step in steps.steps] == [True, False]
    assert steps.steps[1].problems[0].message.startswith("optimizer_0: ")


@pytest.mark.parametrize(
    ("layout", "state", "file"),
    [
        ("DCP", {"model": {"w": WEIGHT}}, None),
        ("fsdp2 generate", {"train": {"model": {"w": WEIGHT}, "step": 1}, "rng-cpu-0": {"cpu": torch.zeros(2)}}, None),
        (
            "torchtitan",
            {"w": WEIGHT, "lr_scheduler": {"last_epoch": 1}, "train_state": {"step": torch.tensor(1)}},
            None,
        ),
        ("Lightning", {"model": {"w": WEIGHT}, "optimizer_0": {"state": {}}}, "meta.pt"),
    ],
)
def test_who_wrote_it_is_recognised(layout: str, state: dict[str, Any], file: str | None, tmp_path: Path) -> None:
    save(tmp_path / "a", state)
    if file:
        (tmp_path / "a" / file).write_bytes(b"")
    assert look(tmp_path / "a").layout == layout


def test_parts_are_totalled_one_level_below_a_wrapper(tmp_path: Path) -> None:
    layers = {f"layers.{n}.w": torch.zeros(2) for n in range(12)}
    save(tmp_path / "a", {"train": {"model": layers, "step": 1}, "plain": torch.zeros(2)})
    contents = look(tmp_path / "a").contents
    assert contents is not None
    assert set(contents.tops().values()) == {"train.model", "train.step", "plain"}


def write_safetensors(folder: Path, **options: Any) -> Path:
    pytest.importorskip("safetensors")
    writer = dcp.HuggingFaceStorageWriter(path=str(folder), **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save({"w": WEIGHT, "b": torch.ones(4, dtype=torch.bfloat16)}, storage_writer=writer, no_dist=True)
    return folder


@pytest.mark.parametrize("distributed", [False, True])
def test_safetensors_that_dcp_wrote_are_read(distributed: bool, tmp_path: Path) -> None:
    from pytorch_fsdp2_dcp.validate.checkpoint.digest import digest

    folder = write_safetensors(tmp_path / "a", save_distributed=distributed)
    found = look(folder)
    assert found.contents is not None
    assert (found.layout, found.whole) == ("safetensors", True)
    assert digest(found.folder, found.contents.tensors["w"], 64) == digest_in_memory(WEIGHT)
    assert found.contents.tensors["b"].dtype == "bfloat16"


def test_a_safetensors_file_that_the_index_names_and_is_missing_is_named(tmp_path: Path) -> None:
    mapping = {"w": 1, "b": 2}
    folder = write_safetensors(tmp_path / "a", fqn_to_index_mapping=mapping)
    assert look(folder).whole
    (folder / "model-00002-of-00002.safetensors").unlink()
    (remark,) = look(folder).problems
    assert (remark.kind, "model-00002-of-00002" in remark.message) == ("file-missing", True)


@pytest.mark.parametrize(
    "data", [b"", b"\xff" * 8, (100).to_bytes(8, "little") + b"{", (2).to_bytes(8, "little") + b"[]"]
)
def test_a_damaged_safetensors_file_is_one_error(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(data)
    with pytest.raises(UserError, match=r"model\.safetensors"):
        survey(open_folder(str(tmp_path)))


def test_a_checkpoint_is_read_through_fsspec(saved: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    from pytorch_fsdp2_dcp.validate.checkpoint.digest import digest

    system = fsspec.filesystem("memory")
    system.put(str(saved), "/bucket/run/step-3", recursive=True)
    try:
        steps = survey(open_folder("memory://bucket/run"))
        assert isinstance(steps, Steps)
        (found,) = steps.checkpoints
        assert isinstance(found, Checkpoint)
        assert found.contents is not None
        assert found.whole
        assert digest(found.folder, found.contents.tensors["model.w"], 64) == digest_in_memory(WEIGHT)
    finally:
        system.rm("/bucket", recursive=True)


@pytest.mark.parametrize("uri", ["nosuchprotocol://x/y", "memory://nothing/here"])
def test_a_uri_that_leads_nowhere_is_refused(uri: str) -> None:
    pytest.importorskip("fsspec")
    with pytest.raises(UserError, match=r"x/y|here"):
        open_folder(uri)


def test_a_file_uri_is_a_path(saved: Path) -> None:
    pytest.importorskip("fsspec")
    (saved / DATA).rename(saved.parent / "outside")
    (saved / DATA).symlink_to("../outside")
    found = survey(open_folder(f"file://{saved}"))
    assert isinstance(found, Checkpoint)
    assert [remark.kind for remark in found.problems] == ["file-outside"]
