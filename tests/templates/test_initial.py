"""Scripts with `initial_checkpoint`: what a run starts from, what it leaves out, and that asking again is safe."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

torch = pytest.importorskip("torch")
import torch.distributed.checkpoint as dcp  # noqa: E402

from .loaded import joined, load_script, parse  # noqa: E402
from .training import Training, write_script  # noqa: E402


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_script(tmp_path_factory.mktemp("script"), initial_checkpoint="on", async_mode="disabled")


class Flagged(Training):
    """With a flag that takes no value."""

    flag = "--seed-checkpoint"

    def arguments(self) -> list[str]:
        return [*super().arguments(), self.flag]


@pytest.mark.matrix
@pytest.mark.slow
def test_any_number_of_ranks_starts_from_a_seed_checkpoint_as_if_there_were_none(script: Path, tmp_path: Path) -> None:
    """Bit for bit, the first steps of the optimizer too; and to seed again changes nothing."""
    seed = Flagged(script, tmp_path / "seed", ranks=1)
    for _ in range(2):
        process = seed.run()
        assert process.returncode == 0, process.stderr
        assert seed.saved() == ["step-0"] and not seed.log.exists()
    plain = Training(script, tmp_path / "plain").finish()
    seeded = Training(script, tmp_path / "seeded", options={"--checkpoint-dir": str(seed.checkpoints)})
    assert seeded.finish() == plain
    refused = Flagged(script, tmp_path / "refused", ranks=2).run()
    assert "one process for --seed-checkpoint" in refused.stderr and not (tmp_path / "refused" / "checkpoints").exists()


@pytest.mark.matrix
@pytest.mark.slow
def test_a_run_starts_from_the_weights_of_another_topology_and_goes_on_from_its_own(
    script: Path, tmp_path: Path
) -> None:
    other = Training(script, tmp_path / "other", ranks=2)
    losses = [record["loss"] for record in other.finish()]
    initial = {"--initial-checkpoint": str(other.checkpoints / "step-12"), "--dropout": "0"}
    training = Training(script, tmp_path / "run", ranks=1, options=initial)
    records = training.finish()
    assert [record["step"] for record in records] == [*range(1, 13)]
    assert records[0]["loss"] < losses[0] - 0.2, "not the weights of step 12"
    before = training.log.read_bytes()
    process = training.run()
    assert process.returncode == 0 and "from step 12 to 12" in process.stdout
    assert "--initial-checkpoint" in process.stdout and "is not read" in process.stdout
    assert training.log.read_bytes() == before


@pytest.fixture(scope="module")
def train(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    return load_script(tmp_path_factory.mktemp("module"), initial_checkpoint="on", async_mode="disabled")


def build(train: ModuleType, monkeypatch: pytest.MonkeyPatch, folder: Path, **options: str):
    """A checkpointer in a world of one rank, of a model with weights that depend on --seed."""
    args = parse(train, monkeypatch, world=1, checkpoint_dir=str(folder), **options)
    cpu = torch.device("cpu")
    model = train.build_model_meta(args, train.build_mesh(args, cpu), cpu)
    state = train.TrainState(model, *train.build_optimizer(model, args))
    return train.Checkpointer(args.checkpoint_dir, 2, "a run", state, train.RankState(cpu)), args


def step(checkpointer) -> None:
    """An optimizer step whose gradients are the parameters."""
    for parameter in checkpointer.train.model.parameters():
        parameter.grad = parameter.detach().clone()
    checkpointer.train.optimizer.step()
    checkpointer.train.scheduler.step()
    checkpointer.train.optimizer.zero_grad()
    checkpointer.train.step += 1


def weights(checkpointer) -> dict[str, torch.Tensor]:
    return {name: value.full_tensor().clone() for name, value in checkpointer.train.model.named_parameters()}


@pytest.fixture
def saved(train: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """A run of three steps, saved; in a world of one rank."""
    with joined():
        checkpointer, _ = build(train, monkeypatch, tmp_path / "saved", seed="1")
        for _ in range(3):
            step(checkpointer)
        checkpointer.save()
        yield checkpointer


def test_the_weights_alone_are_read_from_an_initial_checkpoint(
    train: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, saved
) -> None:
    """Optimizer, schedule, step and random numbers are those of a new run, and so is what the next step does."""
    checkpointer, _ = build(train, monkeypatch, tmp_path / "new")
    reference, _ = build(train, monkeypatch, tmp_path / "reference", seed="1")
    assert not checkpointer.resume(0, saved.folder / "step-3", ())
    assert (checkpointer.train.step, checkpointer.train.scheduler.last_epoch) == (0, 0)
    assert torch.initial_seed() == train.seed_for(0, 0, "step-0")
    with torch.no_grad():
        for one, other in zip(*(c.train.model.parameters() for c in (reference, saved)), strict=True):
            one.copy_(other)
    for either in (checkpointer, reference):
        step(either)
    for name, value in weights(checkpointer).items():
        assert torch.equal(value, weights(reference)[name]), name


def test_what_is_excluded_stays_as_it_is_when_resuming_and_when_starting(
    train: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, saved
) -> None:
    checkpointer, _ = build(train, monkeypatch, saved.folder)
    fresh = weights(checkpointer)
    excluded = ("train.optimizer", "train.scheduler", "train.model.blocks.1")
    assert checkpointer.resume(0, None, excluded)
    assert (checkpointer.train.step, checkpointer.train.scheduler.last_epoch) == (3, 0)
    for name, value in weights(checkpointer).items():
        assert torch.equal(value, (fresh if name.startswith("blocks.1.") else weights(saved))[name]), name
    states = checkpointer.train.optimizer.state.values()
    assert all(state["step"] == 0 and not state["exp_avg"].full_tensor().any() for state in states)
    checkpointer, _ = build(train, monkeypatch, tmp_path / "new")
    checkpointer.resume(0, saved.folder / "step-3", ("train.model.embed", "train.model.head"))
    loaded = {name for name, value in weights(checkpointer).items() if torch.equal(value, weights(saved)[name])}
    assert loaded == fresh.keys() - {"embed.weight"}


def test_a_key_that_is_not_excluded_has_to_be_there(
    train: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, saved
) -> None:
    larger, _ = build(train, monkeypatch, tmp_path / "larger", layers="3", seed="1")
    with pytest.raises(dcp.CheckpointException, match=r"Missing key.*blocks\.2"):
        larger.resume(0, saved.folder / "step-3", ())
    larger.resume(0, saved.folder / "step-3", ("train.model.blocks.2",))
    assert torch.equal(weights(larger)["blocks.1.qkv.weight"], weights(saved)["blocks.1.qkv.weight"])


def test_an_initial_checkpoint_that_is_not_whole_is_refused_with_what_it_lacks(
    train: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, saved, capsys: pytest.CaptureFixture[str]
) -> None:
    next((saved.folder / "step-3").glob("*.distcp")).unlink()
    checkpointer, _ = build(train, monkeypatch, tmp_path / "new")
    with pytest.raises(SystemExit) as caught:
        checkpointer.resume(0, saved.folder / "step-3", ())
    (line,) = capsys.readouterr().err.splitlines()
    assert caught.value.code == 2
    assert str(saved.folder / "step-3") in line and "missing" in line and "expected a whole checkpoint" in line


@pytest.mark.parametrize("prefixes", ["optimizer", "train.step", "train.scheduler,train"])
def test_prefixes_of_no_part_that_can_be_left_out_are_refused(
    train: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], prefixes: str
) -> None:
    with pytest.raises(SystemExit):
        parse(train, monkeypatch, exclude_from_loading=prefixes)
    assert "--exclude-from-loading" in capsys.readouterr().err
