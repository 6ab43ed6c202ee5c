"""The parts of a generated script, in this process: what it refuses, and what it builds, draws and keeps."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from .training import TEXT

torch = pytest.importorskip("torch")
from .loaded import joined, load_script, parse  # noqa: E402


@pytest.fixture(scope="module")
def train(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    return load_script(tmp_path_factory.mktemp("script"))


@pytest.fixture
def alone(train: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[object]:
    """Arguments in a world of one rank, which has been joined."""
    with joined():
        yield parse(train, monkeypatch, world=1, checkpoint_dir=str(tmp_path / "checkpoints"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"steps": "0"}, "--steps 1 or more"),
        ({"steps": "ten"}, "--steps: invalid int value"),
        ({"global_batch": "7"}, "--global-batch a multiple of 2 x --micro-batch"),
        ({"micro_batch": "0"}, "--micro-batch 1 or more"),
        ({"keep_latest": "1"}, "--keep-latest 2 or more"),
        ({"dp_shard": "3"}, "--dp-shard -1 or 2, other dims 1"),
        ({"dp_replicate": "2"}, "--dp-shard -1 or 2, other dims 1"),
        ({"tp": "2"}, "--dp-shard -1 or 2, other dims 1"),
        ({"checkpoint_dir": __file__}, "--checkpoint-dir to be a folder, which"),
        ({"width": "30", "heads": "4"}, "--width to be a multiple"),
        ({"dropout": "1"}, "--dropout from 0 to below 1"),
        ({"lr": "nan"}, "--lr above 0"),
        ({"lr": "inf"}, "--lr above 0"),
        ({"no_such": "1"}, "unrecognized arguments"),
    ],
)
def test_a_wrong_command_line_ends_every_rank_with_2_and_one_line(
    train: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], options, words: str
) -> None:
    waits: list[float] = []
    monkeypatch.setattr(train.time, "sleep", waits.append)
    for rank, lines in ((0, 1), (1, 0)):
        with pytest.raises(SystemExit) as caught:
            parse(train, monkeypatch, rank=rank, **options)
        err = capsys.readouterr().err
        assert caught.value.code == 2
        assert len(err.splitlines()) == lines
        assert words in err or rank == 1
    assert waits == [3], "only the rank that tells nothing lets the other end first"


def test_a_script_started_without_torchrun_says_so(
    train: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setattr(sys, "argv", ["train.py", "--data", str(TEXT)])
    with pytest.raises(SystemExit):
        train.parse_args()
    assert "expected torchrun" in capsys.readouterr().err


@pytest.mark.parametrize("content", [None, b"short", b"\0" * 1000])
def test_data_that_is_missing_or_too_short_or_no_text_is_refused(
    train: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, content
) -> None:
    if content is not None:
        (tmp_path / "data").write_bytes(content)
    with pytest.raises(SystemExit) as caught:
        train.load_data(parse(train, monkeypatch, data=str(tmp_path / "data")))
    (line,) = capsys.readouterr().err.splitlines()
    assert caught.value.code == 2
    assert str(tmp_path / "data") in line and "expected" in line


def test_a_folder_is_its_text_files_in_the_order_of_their_names(
    train: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    files = {"b.txt": b"b" * 40, "a/z.md": b"a" * 40, ".hidden": b"h", ".git/config": b"g", "image.png": b"\x89\0"}
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    data = train.load_data(parse(train, monkeypatch, data=str(tmp_path)))
    assert bytes(data.tolist()) == b"a" * 40 + b"b" * 40


def test_ranks_share_the_global_batch_which_depends_on_seed_and_step_alone(
    train: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Mesh:
        def __init__(self, size: int, rank: int) -> None:
            self.size, self.get_rank = (lambda: size), (lambda: rank)

    def batch(world: int, step: int, **options: str):
        args = parse(train, monkeypatch, world=world, **options)
        data = train.load_data(args)
        return torch.cat([train.draw_batch(data, args, step, Mesh(world, rank)) for rank in range(world)])

    alone = batch(1, 5)
    assert alone.shape == (8, 33)
    assert torch.equal(alone, batch(2, 5)) and torch.equal(alone, batch(4, 5))
    assert not torch.equal(alone, batch(1, 6))
    assert not torch.equal(alone, batch(1, 5, seed="1"))


def test_every_parameter_and_buffer_gets_the_value_that_it_would_have_without_meta_init(
    train: ModuleType, alone
) -> None:
    model = train.build_model_meta(alone, train.build_mesh(alone, torch.device("cpu")), torch.device("cpu"))
    position, pair, pairs = 7, 3, model.rotary.shape[-1]
    angle = position * 10000.0 ** (-pair / pairs)
    assert model.rotary[0, position, pair].item() == pytest.approx(math.cos(angle), abs=1e-6)
    assert model.rotary[1, position, pair].item() == pytest.approx(math.sin(angle), abs=1e-6)
    assert model.head.weight is model.embed.weight
    for name, parameter in model.named_parameters():
        value = parameter.full_tensor()
        if value.dim() == 1:
            assert torch.equal(value, torch.ones_like(value)), name
        else:
            std = 0.01 if name.endswith(("out.weight", "down.weight")) else 0.02
            assert value.std().item() == pytest.approx(std, rel=0.1), name
    first, second = (block.qkv.weight.full_tensor() for block in model.blocks)
    assert not torch.equal(first, second)
    assert torch.equal(first, train.build_model_meta(alone, model.embed.weight.device_mesh, torch.device("cpu"))
                       .blocks[0].qkv.weight.full_tensor())  # fmt: skip


def test_a_buffer_that_nothing_initialises_is_found(train: ModuleType, alone, monkeypatch: pytest.MonkeyPatch) -> None:
    class Extended(train.GPT):
        def __init__(self, args) -> None:
            super().__init__(args)
            self.register_buffer("mask", torch.zeros(3), persistent=False)

    monkeypatch.setattr(train, "GPT", Extended)
    with pytest.raises(AssertionError, match="mask was left uninitialised"):
        train.build_model_meta(alone, train.build_mesh(alone, torch.device("cpu")), torch.device("cpu"))


def test_the_schedule_warms_up_then_falls_to_a_tenth(train: ModuleType, alone) -> None:
    model = train.build_model_meta(alone, train.build_mesh(alone, torch.device("cpu")), torch.device("cpu"))
    alone.steps = 100
    optimizer, scheduler = train.build_optimizer(model, alone)
    rates = []
    for _ in range(101):
        rates.append(scheduler.get_last_lr()[0])
        optimizer.step()
        scheduler.step()
    assert rates[0] == pytest.approx(alone.lr / 5) and max(rates) == rates[5] == pytest.approx(alone.lr)
    assert rates[5:] == sorted(rates[5:], reverse=True) and rates[-1] == pytest.approx(alone.lr / 10)
    decayed = {p.dim() > 1: group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    assert decayed == {True: 0.1, False: 0.0}


def test_the_log_is_continued_after_the_resumed_step(train: ModuleType, tmp_path: Path) -> None:
    """Lines beyond it, and one that was being written when the run died, are dropped; those before stay as they are."""
    log = tmp_path / "logs" / "train.jsonl"
    train.open_log(log, 0).close()
    lines = [json.dumps({"step": step, "loss": 0.1 * step}) + "\n" for step in range(1, 6)]
    log.write_text("".join(lines) + '{"step": 6')
    with train.open_log(log, 3) as file:
        file.write("next\n")
    assert log.read_text() == "".join(lines[:3]) + "next\n"
    assert [path.name for path in log.parent.iterdir()] == ["train.jsonl"]


def test_a_log_goes_where_its_name_leads(train: ModuleType, tmp_path: Path) -> None:
    """Through a link, and into what is no file, as /dev/null; neither is replaced."""
    (tmp_path / "target.jsonl").write_text('{"step": 1}\n{"step": 2}\n')
    (tmp_path / "link.jsonl").symlink_to("target.jsonl")
    train.open_log(tmp_path / "link.jsonl", 1).close()
    assert (tmp_path / "link.jsonl").is_symlink()
    assert (tmp_path / "target.jsonl").read_text() == '{"step": 1}\n'
    (tmp_path / "null").symlink_to("/dev/null")
    train.open_log(tmp_path / "null", 0).close()
    assert Path("/dev/null").is_char_device()


def test_a_file_that_is_no_log_is_left_alone(
    train: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.json").write_text('{"my": "own"}')
    with pytest.raises(SystemExit) as caught:
        train.open_log(tmp_path / "mine.json", 0)
    assert caught.value.code == 2
    assert "no log of a run" in capsys.readouterr().err
    assert (tmp_path / "mine.json").read_text() == '{"my": "own"}'


def test_what_is_no_checkpoint_directory_is_neither_counted_nor_in_the_way(train: ModuleType, alone) -> None:
    model = train.build_model_meta(alone, train.build_mesh(alone, torch.device("cpu")), torch.device("cpu"))
    state = train.TrainState(model, *train.build_optimizer(model, alone))
    folder = alone.checkpoint_dir
    checkpointer = train.Checkpointer(folder, 2, "a run", state, train.RankState(torch.device("cpu")))
    (folder.parent / "elsewhere").mkdir(parents=True)
    folder.mkdir()
    (folder / "step-1").write_text("a file")
    (folder / "step-2").symlink_to(folder.parent / "elsewhere", target_is_directory=True)
    for state.step in (3, 4, 5):
        checkpointer.save()
    checkpointer.wait()
    assert sorted(path.name for path in folder.iterdir()) == ["step-1", "step-2", "step-4", "step-5"]


def test_a_whole_checkpoint_is_never_overwritten(train: ModuleType, alone) -> None:
    model = train.build_model_meta(alone, train.build_mesh(alone, torch.device("cpu")), torch.device("cpu"))
    state = train.TrainState(model, *train.build_optimizer(model, alone))
    checkpointer = train.Checkpointer(alone.checkpoint_dir, 2, "a run", state, train.RankState(torch.device("cpu")))
    state.step = 1
    checkpointer.save()
    checkpointer.wait()
    with pytest.raises(FileExistsError, match="never overwritten"):
        checkpointer.save()


def test_a_resume_restores_the_generators_of_a_known_rank_and_seeds_those_of_a_new_one(
    train: ModuleType, alone
) -> None:
    model = train.build_model_meta(alone, train.build_mesh(alone, torch.device("cpu")), torch.device("cpu"))
    state = train.TrainState(model, *train.build_optimizer(model, alone))
    rank = train.RankState(torch.device("cpu"))
    checkpointer = train.Checkpointer(alone.checkpoint_dir, 2, "a run", state, rank)
    state.step = 3
    checkpointer.save()
    checkpointer.wait()
    expected = torch.rand(4)
    checkpointer.resume(alone.seed)
    assert torch.equal(torch.rand(4), expected)
    rank.key = "rng-cpu-7"
    newcomer = train.Checkpointer(alone.checkpoint_dir, 2, "a run", state, rank)
    newcomer.resume(alone.seed)
    fresh = torch.rand(4)
    newcomer.resume(alone.seed)
    assert torch.equal(torch.rand(4), fresh) and not torch.equal(fresh, expected)


def test_a_run_is_known_by_what_its_steps_depend_on(train: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    run = parse(train, monkeypatch).run
    changes = {"global_batch": "32", "seq_len": "16", "lr": "0.5", "seed": "1", "layers": "1", "heads": "1"}
    changes |= {"width": "16", "dropout": "0.5"}
    for name, value in changes.items():
        assert parse(train, monkeypatch, **{name: value}).run != run, name
    same = {"micro_batch": "1", "steps": "5", "checkpoint_interval": "2", "keep_latest": "7", "checkpoint_dir": "there"}
    assert parse(train, monkeypatch, **same).run == run


def test_the_checkpoint_of_another_run_is_refused_before_any_of_it_is_loaded(
    train: ModuleType, alone, capsys: pytest.CaptureFixture[str]
) -> None:
    cpu = torch.device("cpu")
    model = train.build_model_meta(alone, train.build_mesh(alone, cpu), cpu)
    state = train.TrainState(model, *train.build_optimizer(model, alone))
    checkpointer = train.Checkpointer(alone.checkpoint_dir, 2, "--lr 0.1", state, train.RankState(cpu))
    state.step = 3
    checkpointer.save()
    checkpointer.wait()
    state.step = 0
    with pytest.raises(SystemExit) as caught:
        train.Checkpointer(alone.checkpoint_dir, 2, "--lr 0.2", state, train.RankState(cpu)).resume(0)
    assert caught.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "step-3 is of a run with --lr 0.1; expected these, not --lr 0.2, or a new --checkpoint-dir" in line
    assert state.step == 0
