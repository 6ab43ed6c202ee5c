"""The data of generated scripts: who reads what at which step, what is refused, and that a resume goes on exactly."""

from __future__ import annotations

import itertools
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from pytorch_fsdp2_dcp.templates.options import answer  # noqa: E402
from pytorch_fsdp2_dcp.validate.errors import UserError  # noqa: E402

from .inputs import DATASET, TEXT, write_dataset, write_tokens  # noqa: E402
from .loaded import joined, load_script, parse  # noqa: E402
from .training import Training, kill_all, write_script  # noqa: E402

VOCABULARY = {"--vocab-size": "256"}


class Mesh:
    """A mesh of which this is a rank; there is nobody else."""

    def __init__(self, size: int, rank: int) -> None:
        self.size, self.get_rank = (lambda: size), (lambda: rank)


class Source:
    """The script of one kind of data, on one mesh, and what its ranks draw."""

    def __init__(self, kind: str, mesh: str, folder: Path, patch: pytest.MonkeyPatch) -> None:
        folder.mkdir()
        self.kind, self.patch, self.tp = kind, patch, "2" if "tp" in mesh else "1"
        self.train = load_script(folder, dataset=kind, mesh=mesh)
        self.options: dict[str, str] = {} if kind == "bytes" else {"vocab_size": "256"}
        if kind == "tokens":
            self.options["data"] = str(write_tokens(folder / "tokens"))
        if kind == DATASET:
            write_dataset(folder)
            patch.syspath_prepend(folder)
            patch.delitem(sys.modules, "my_dataset", raising=False)  # another test's
            self.options["workers"] = "0"

    def args(self, world: int = 1, rank: int = 0, **options: str) -> Any:
        return parse(self.train, self.patch, world, rank, **{"tp": self.tp, **self.options, **options})

    def draw(self, world: int, rank: int, step: int, **options: str) -> Any:
        args = self.args(world, rank, **options)
        data = self.train.load_data(args)
        if self.kind == DATASET:
            return next(self.train.draw_batches(data, args, step, Mesh(world, rank)))
        return self.train.draw_batch(data, args, step, Mesh(world, rank))


@pytest.fixture
def alone() -> Iterator[None]:
    with joined():
        yield


def needs(kind: str) -> None:
    if kind == DATASET:
        pytest.importorskip("torchdata")


def refused(capsys: pytest.CaptureFixture[str], caught: pytest.ExceptionInfo[SystemExit]) -> str:
    """The one line by which a script has ended with 2."""
    (line,) = capsys.readouterr().err.splitlines()
    assert caught.value.code == 2
    assert "expected" in line
    return line


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("kind", ["bytes", "tokens", DATASET])
def test_ranks_share_the_global_batch_which_depends_on_seed_and_step_alone(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs(kind)
    source = Source(kind, "dp_shard=-1", tmp_path / "dp", monkeypatch)
    whole = source.draw(1, 0, 5)
    assert whole.shape == (8, 33) and whole.dtype == torch.int64
    assert len({tuple(row) for row in whole.tolist()}) == 8
    for world in (2, 4):
        assert torch.equal(whole, torch.cat([source.draw(world, rank, 5) for rank in range(world)]))
    assert not torch.equal(whole, source.draw(1, 0, 6))
    assert not torch.equal(whole, source.draw(1, 0, 5, seed="1"))


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("kind", ["bytes", "tokens", DATASET])
def test_tensor_parallel_peers_read_the_same_and_share_the_batch_of_a_world_without_them(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs(kind)
    whole = Source(kind, "dp_shard=-1", tmp_path / "dp", monkeypatch).draw(1, 0, 5)
    source = Source(kind, "dp_shard=-1,tp=2", tmp_path / "tp", monkeypatch)
    parts = [source.draw(4, rank, 5) for rank in range(4)]
    assert torch.equal(parts[0], parts[1]) and torch.equal(parts[2], parts[3])
    assert torch.equal(whole, torch.cat(parts[::2]))


@pytest.fixture
def tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Source:
    return Source("tokens", "dp_shard=-1", tmp_path / "script", monkeypatch)


def test_tokens_of_a_folder_are_one_stream_in_the_order_of_the_files_names(tokens: Source) -> None:
    data = tokens.train.load_data(tokens.args())
    text = TEXT.read_bytes()
    assert bytes(data.read(0, len(text)).tolist()) == text
    border = data.starts[1]
    assert bytes(data.read(border - 3, 6).tolist()) == text[border - 3 : border + 3]
    assert data.find(border - 1) == (0, border - 1) and data.find(border) == (1, 0)


def test_tokens_of_four_bytes_are_read_as_such(tokens: Source, tmp_path: Path) -> None:
    np.arange(70000, 70100, dtype="<u4").tofile(tmp_path / "data.bin")
    data = tokens.train.load_data(tokens.args(data=str(tmp_path / "data.bin"), token_dtype="uint32"))
    assert data.read(98, 2).tolist() == [70098, 70099]


@pytest.mark.usefixtures("alone")
def test_a_file_larger_than_memory_is_not_read(tokens: Source, tmp_path: Path) -> None:
    """A batch of 64 GiB of tokens, which take no room on the disk, needs less than 64 MiB of memory."""
    with (tmp_path / "data.bin").open("wb") as file:
        file.truncate(64 * 2**30)
    before = resident()
    batch = tokens.draw(1, 0, 0, data=str(tmp_path / "data.bin"))
    assert batch.shape == (8, 33) and not batch.any()
    assert resident() - before < 64 * 2**20


def resident() -> int:
    """Bytes of memory that this process holds."""
    return int(re.search(r"^VmRSS:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)[1]) * 1024


def write_bad(folder: Path, case: str) -> Path:
    """What is wrong is the name of the file."""
    path = folder / case
    if case == "empty folder":
        path.mkdir()
        (path / "notes.txt").write_text("no tokens\n" * 100)
    elif case == "text.txt":
        path.write_text("no tokens\n" * 100)
    elif case == "odd.bin":
        path.write_bytes(bytes(1001))
    elif case == "short.bin":
        path.write_bytes(bytes(2 * 32))
    elif case == "empty.bin":
        path.touch()
    elif case == "two dims.npy":
        np.save(path, np.zeros((50, 50), dtype=np.uint16))
    elif case == "floats.npy":
        np.save(path, np.zeros(1000))
    elif case == "objects.npy":
        np.save(path, np.array([{}] * 1000))
    elif case == "no array.npy":
        path.write_bytes(b"no array" * 100)
    elif case == "cut.npy":
        np.save(path, np.zeros(1000, dtype=np.uint16))
        path.write_bytes(path.read_bytes()[:-1000])
    else:
        assert case == "missing.bin"
    return path


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("missing.bin", "No such file"),
        ("empty folder", "0 tokens"),
        ("text.txt", ".txt"),
        ("odd.bin", "uint16"),
        ("short.bin", "32 tokens"),
        ("empty.bin", "empty"),
        ("two dims.npy", "2-dimensional uint16"),
        ("floats.npy", "float64"),
        ("objects.npy", "integers"),
        ("no array.npy", "integers"),
        ("cut.npy", "integers"),
    ],
)
def test_files_that_hold_no_tokens_are_refused_by_name(
    tokens: Source, tmp_path: Path, capsys: pytest.CaptureFixture[str], case: str, words: str
) -> None:
    path = write_bad(tmp_path, case)
    with pytest.raises(SystemExit) as caught:
        tokens.train.load_data(tokens.args(data=str(path)))
    line = refused(capsys, caught)
    assert str(path) in line and words in line


@pytest.mark.usefixtures("alone")
def test_a_token_beyond_the_vocabulary_is_named_with_its_file_and_position(
    tokens: Source, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    np.zeros(5, dtype="<u2").tofile(folder / "a.bin")
    values = np.arange(1000, 1040, dtype=np.int64)
    values[::2] = -1
    np.save(folder / "b.npy", values)
    with pytest.raises(SystemExit) as caught:
        tokens.draw(1, 0, 0, data=str(folder))
    match = re.search(r"b\.npy: token (-?\d+) at position (\d+); ", line := refused(capsys, caught))
    assert match is not None, line
    assert values[int(match[2])] == int(match[1])


@pytest.mark.parametrize(
    ("kind", "options", "words"),
    [
        ("tokens", {"vocab_size": "0"}, "--vocab-size 1 or more"),
        ("tokens", {"token_dtype": "float32"}, "--token-dtype"),
        (DATASET, {"workers": "-1"}, "--workers 0 or more"),
    ],
)
def test_options_of_the_data_are_checked(
    kind: str,
    options: dict[str, str],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    source = Source(kind, "dp_shard=-1", tmp_path / "script", monkeypatch)
    with pytest.raises(SystemExit) as caught:
        source.args(**options)
    (line,) = capsys.readouterr().err.splitlines()
    assert caught.value.code == 2 and words in line


def test_without_torchdata_its_name_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = Source(DATASET, "dp_shard=-1", tmp_path / "script", monkeypatch)
    monkeypatch.setattr(source.train, "find_spec", lambda _: None)
    with pytest.raises(SystemExit) as caught:
        source.args()
    assert "pip install torchdata" in refused(capsys, caught)


@pytest.fixture
def dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Source:
    pytest.importorskip("torchdata")
    return Source(DATASET, "dp_shard=-1", tmp_path / "script", monkeypatch)


def test_an_epoch_has_each_item_once_in_an_order_of_its_own(dataset: Source) -> None:
    """11 items in batches of 8: an epoch ends within a batch, and the next begins there."""
    args = dataset.args()
    batches = dataset.train.draw_keys(11, args, 0, Mesh(1, 0))
    keys = list(itertools.chain.from_iterable(itertools.islice(batches, 11)))
    assert [place for place, _ in keys] == list(range(88))
    epochs = [tuple(index for _, index in keys[first : first + 11]) for first in range(0, 88, 11)]
    assert all(sorted(epoch) == list(range(11)) for epoch in epochs)
    assert len(set(epochs)) == 8


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("workers", ["0", "2"])
def test_batches_from_a_step_on_are_those_of_an_unbroken_run_and_change_no_random_numbers(
    dataset: Source, workers: str
) -> None:
    """Whatever workers drew ahead; items draw random numbers themselves, and the model's are left alone."""
    torch.manual_seed(1)
    expected = torch.rand(3)
    args = dataset.args(workers=workers)
    data = dataset.train.load_data(args)
    unbroken = list(itertools.islice(dataset.train.draw_batches(data, dataset.args(), 0, Mesh(1, 0)), 6))
    torch.manual_seed(1)
    first = list(itertools.islice(dataset.train.draw_batches(data, args, 0, Mesh(1, 0)), 3))
    rest = list(itertools.islice(dataset.train.draw_batches(data, args, 3, Mesh(1, 0)), 3))
    assert torch.equal(torch.stack(first + rest), torch.stack(unbroken))
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(
    ("item", "words"),
    [
        ("torch.zeros(32, dtype=torch.long)", "item 7 is (32,) of torch.int64"),
        ("torch.zeros(2, 40, dtype=torch.long)", "item 7 is (2, 40)"),
        ("torch.zeros(40)", "item 7 is (40,) of torch.float32"),
        ("[1] * 40", "item 7 is a list"),
        ("torch.full((40,), 256)", "item 7 has tokens 256 to 256"),
        ("torch.full((40,), -1)", "item 7 has tokens -1 to -1"),
    ],
)
def test_an_item_of_no_use_is_named(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    dataset: Source,
    item: str,
    words: str,
) -> None:
    write_dataset(tmp_path / "script", bad=item)
    args = dataset.args()
    data = dataset.train.load_data(args)
    with pytest.raises(SystemExit) as caught:
        for _ in itertools.islice(dataset.train.draw_batches(data, args, 0, Mesh(1, 0)), len(data)):
            pass
    assert words in refused(capsys, caught)


@pytest.mark.parametrize(
    ("returned", "words"), [("'abc'[:2]", "2 items"), ("[]", "0 items"), ("iter(())", "made a tuple_iterator")]
)
def test_what_is_no_dataset_or_too_short_a_one_is_refused(
    dataset: Source, tmp_path: Path, capsys: pytest.CaptureFixture[str], returned: str, words: str
) -> None:
    (tmp_path / "script" / "my_dataset.py").write_text(f"def build_dataset(path):\n    return {returned}\n")
    with pytest.raises(SystemExit) as caught:
        dataset.train.load_data(dataset.args())
    assert words in refused(capsys, caught)


@pytest.mark.slow
def test_a_bad_token_that_one_rank_finds_ends_both_with_2_and_one_line(tokens: Source, tmp_path: Path) -> None:
    """It is where rank 1 reads in its first batch, and rank 0 does not."""
    args = tokens.args(world=2)
    generator = torch.Generator().manual_seed(tokens.train.seed_for(args.seed, "data", 0))
    offset = int(torch.randint(100_000 - args.seq_len, (args.global_batch,), generator=generator)[-1])
    values = np.zeros(100_000, dtype="<u2")
    values[offset + 4] = 256
    values.tofile(tmp_path / "data.bin")
    script = tmp_path / "script" / "train.py"
    training = Training(script, tmp_path / "run", options={"--data": str(tmp_path / "data.bin"), **VOCABULARY})
    process = training.run()
    told = [line for line in process.stderr.splitlines() if "expected 0 to below" in line]
    assert len(told) == 1, process.stderr
    assert f"data.bin: token 256 at position {offset + 4};" in told[0]
    assert len(re.findall(r"exitcode +: 2 ", process.stderr)) == 2
    assert "[rank" not in process.stderr, "a rank raised"
    assert training.records() == []


def dataset_training(folder: Path, **options: str) -> Training:
    pytest.importorskip("torchdata")
    folder.mkdir(exist_ok=True)
    write_dataset(folder)
    return Training(write_script(folder, dataset=DATASET), folder / "run", options={**VOCABULARY, **options})


@pytest.mark.matrix
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["tokens", DATASET])
def test_a_killed_run_ends_as_if_it_had_not_been_and_on_another_number_of_ranks_up_to_rounding(
    kind: str, tmp_path: Path
) -> None:
    """The second time on one rank; for a dataset, without the two workers of each rank before."""
    options = {"--dropout": "0"}
    if kind == DATASET:
        straight = dataset_training(tmp_path / "script", **options, **{"--workers": "2"})
    else:
        data = {"--data": str(write_tokens(tmp_path / "tokens")), **VOCABULARY}
        straight = Training(write_script(tmp_path, dataset=kind), tmp_path / "run", options={**options, **data})
    expected = straight.finish()
    assert len(expected) == 12
    killed = Training(straight.script, tmp_path / "killed", options=straight.options)
    with killed.started() as process:
        killed.wait_for_step(9, process)  # so the checkpoint of step 4 is whole: that of step 8 waited for it
        kill_all(process)
    moved = Training(straight.script, tmp_path / "moved", ranks=1, options=dict(straight.options))
    shutil.copytree(killed.folder, moved.folder)
    assert killed.finish() == expected
    if kind == DATASET:
        moved.options["--workers"] = "0"
    records = moved.finish()
    assert len(records) == 12 and records[:4] == expected[:4]
    for one, other in zip(records, expected, strict=True):
        assert one == pytest.approx(other, rel=1e-4)


@pytest.mark.slow
def test_a_signal_to_all_processes_leaves_workers_to_finish_the_step_and_a_run_leaves_none(tmp_path: Path) -> None:
    """torchrun passes a SIGTERM on to the workers, too; the ranks save all the same, and exit with 0."""
    training = dataset_training(tmp_path / "script", **{"--steps": "400", "--checkpoint-interval": "1000"})
    with training.started() as process:
        training.wait_for_step(3, process)
        process.terminate()
        _, err = process.communicate(timeout=60)
    assert "DataLoader worker" not in err and "[rank" not in err, err
    last = int(training.records()[-1]["step"])
    assert 3 <= last < 400
    assert training.saved() == [f"step-{last}"]
    running = [path for path in Path("/proc").glob("[0-9]*/cmdline") if str(training.script).encode() in read(path)]
    assert running == []


def read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # it has ended
        return b""


@pytest.mark.slow
def test_an_exception_in_a_dataset_ends_the_run_with_its_traceback(tmp_path: Path) -> None:
    """Although its workers ignore the signal by which Python ends them."""
    training = dataset_training(tmp_path / "script", **{"--steps": "400"})
    write_dataset(tmp_path / "script", bad="{}['mine']")
    process = training.run()
    assert process.returncode == 1
    assert "KeyError: 'mine'" in process.stderr


def test_a_script_names_the_factory_and_nothing_else_that_was_given(tmp_path: Path) -> None:
    script = write_script(tmp_path, dataset="a.b_1:make").read_text()
    assert "    from a.b_1 import make as build\n" in script
    assert "my_dataset" not in script


@pytest.mark.parametrize(
    "value",
    ["text", "my_dataset", ":build", "my_dataset:", "a:b:c", "a-b:c", "a:b.c", "a:b()", "a:import", "os;x:y", "a..b:c"],
)
def test_what_cannot_be_imported_is_no_dataset(value: str) -> None:
    """Nothing but names gets into the source, and nothing is imported to find out."""
    with pytest.raises(UserError, match=r"^--dataset .*expected bytes or tokens or package.module:factory"):
        answer({"dataset": value})
