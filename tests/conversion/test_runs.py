"""Checkpoints of real ranks, by FSDP with tensor parallel: they leave as one file, and come back into another mesh."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from pytorch_fsdp2_dcp.templates.mesh import example_ranks, parse_mesh
from pytorch_fsdp2_dcp.validate.command import main

from ..recipes import running as recipes
from ..runs import run_script
from ..templates.rows import TABLE
from ..templates.test_export import saved_weights
from ..templates.training import Training, write_script


def goes_around(checkpoint: Path, folder: Path) -> None:
    """It is whole, leaves as one file, and comes back equal, as the command says."""
    one, again = str(folder / "all.pt"), str(folder / "again")
    for command in (
        ("inspect", str(checkpoint)),
        ("convert", str(checkpoint), one),
        ("convert", one, again),
        ("inspect", str(checkpoint), "--against", again, "--digest"),
    ):
        assert main([*command]) == 0


@pytest.mark.matrix
@pytest.mark.slow
@pytest.mark.parametrize("mesh", TABLE["mesh"])
def test_checkpoints_of_the_generator_go_around_from_every_mesh(mesh: str, tmp_path: Path) -> None:
    script = write_script(tmp_path, mesh=mesh, async_mode="disabled")
    training = Training(script, tmp_path / "run", example_ranks(parse_mesh(mesh)), {"--steps": "4"})
    training.finish()
    goes_around(training.checkpoints / "step-4", tmp_path)


@pytest.mark.matrix
@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "ranks"), [("b_blocking.py", 2), ("b_asynchronous.py", 2), ("tensor_parallel.py", 4)]
)
def test_checkpoints_of_the_recipes_go_around(recipe: str, ranks: int, tmp_path: Path) -> None:
    recipes.run(recipe, tmp_path / "place", ranks, *recipes.TRAINING, "--checkpoint-interval", "10")
    newest = max((tmp_path / "place" / "work" / "checkpoints").iterdir())
    goes_around(newest, tmp_path)


@pytest.mark.matrix
@pytest.mark.slow
def test_a_generated_script_resumes_from_its_checkpoint_after_a_tour_of_formats(tmp_path: Path) -> None:
    """The whole state, its generators too, went through one file; the weights alone equal those of the checkpoint."""
    script = write_script(tmp_path, mesh="dp_shard=2,tp=2")
    training = Training(script, tmp_path / "run", 4)
    training.finish()
    newest = training.checkpoints / "step-12"
    weights = str(tmp_path / "model.pt")
    assert main(["convert", str(newest), weights, "--keys", "train.model.*", "--rename", "train.model.*=*"]) == 0
    exported, expected = torch.load(weights, weights_only=True), saved_weights(newest)
    assert exported.keys() == expected.keys()
    assert all(torch.equal(exported[key], value) for key, value in expected.items())

    shutil.copytree(tmp_path / "run", tmp_path / "control")
    whole = str(tmp_path / "all.pt")
    assert main(["convert", str(newest), whole]) == 0
    shutil.rmtree(newest)
    assert main(["convert", whole, str(newest)]) == 0
    assert all(torch.equal(value, expected[key]) for key, value in saved_weights(newest).items())
    longer = {"--steps": "14"}
    resumed, control = (Training(script, tmp_path / name, 4, longer).finish() for name in ("run", "control"))
    assert resumed == control
    assert [record["step"] for record in resumed] == list(range(1, 15))  # from the newest, and from no other


LOADING = """
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    torch.manual_seed(0)
    model = shard(Model())
    optimizer = torch.optim.AdamW(model.parameters())
    train(model, optimizer, 2)
    state = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer)))
    dcp.save(state, checkpoint_id="saved")
    if rank == 0:
        from pytorch_fsdp2_dcp.validate.command import main
        assert main(["convert", "saved", "one.pt"]) == 0
        assert main(["convert", "one.pt", "again"]) == 0
    dist.barrier()
    torch.manual_seed(1)
    other = shard(Model())
    fresh = torch.optim.AdamW(other.parameters())
    loaded = dict(zip(("model", "optimizer"), get_state_dict(other, fresh)))
    dcp.load(loaded, checkpoint_id="again")
    set_state_dict(other, fresh, model_state_dict=loaded["model"], optim_state_dict=loaded["optimizer"])
    for mine, theirs in zip(model.parameters(), other.parameters()):
        assert torch.equal(mine.to_local(), theirs.to_local())
        for name, value in optimizer.state[mine].items():
            restored = fresh.state[theirs][name]
            pair = [getattr(tensor, "to_local", lambda tensor=tensor: tensor)() for tensor in (value, restored)]
            assert torch.equal(*pair), name
"""


@pytest.mark.slow
def test_sharded_state_and_its_optimizer_come_back_from_one_file(tmp_path: Path) -> None:
    run = run_script(tmp_path, LOADING)
    assert run.succeeded, [(end.code, end.output) for end in run.ends]
