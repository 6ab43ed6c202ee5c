"""Scripts with `export`: what leaves a run equals its weights, bit for bit or cast, and is never half a file."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pytest

torch = pytest.importorskip("torch")
import torch.distributed.checkpoint as dcp  # noqa: E402
from torch import nn  # noqa: E402

from .loaded import joined, load_script, parse  # noqa: E402
from .training import Training, write_script  # noqa: E402

DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16, "I64": torch.int64, "BOOL": torch.bool}


def read_safetensors(path: Path) -> dict[str, torch.Tensor]:
    """By the format's description, which leaves no byte unaccounted for."""
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    head, data = json.loads(content[8 : 8 + length]), content[8 + length :]
    assert length % 8 == 0 and head.pop("__metadata__") == {"format": "pt"}
    tensors, end = {}, 0
    for name, entry in sorted(head.items(), key=lambda item: item[1]["data_offsets"]):
        assert entry["data_offsets"][0] == end
        dtype = DTYPES[entry["dtype"]]
        assert end % dtype.itemsize == 0
        start, end = entry["data_offsets"]
        raw = torch.frombuffer(bytearray(data[start:end]), dtype=dtype) if end > start else torch.empty(0, dtype=dtype)
        tensors[name] = raw.reshape(entry["shape"])
    assert end == len(data)
    return tensors


def read(path: Path) -> dict[str, torch.Tensor]:
    return torch.load(path, weights_only=True) if path.suffix == ".pt" else read_safetensors(path)


def saved_weights(checkpoint: Path) -> dict[str, torch.Tensor]:
    """The model in a checkpoint, whole."""
    metadata = dcp.FileSystemReader(checkpoint).read_metadata().state_dict_metadata
    shapes = {key: entry for key, entry in metadata.items() if key.startswith("train.model.")}
    state = {key: torch.empty(entry.size, dtype=entry.properties.dtype) for key, entry in shapes.items()}
    dcp.load(state, checkpoint_id=checkpoint, no_dist=True)
    return {key.removeprefix("train.model."): value for key, value in state.items()}


class Only(Training):
    """Exports the newest checkpoint."""

    def arguments(self) -> list[str]:
        return [*super().arguments(), "--export-only"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("export", "mesh", "ranks", "dtype"),
    [
        ("pt", "dp_shard=2", 2, "fp16"),
        ("safetensors", "dp_shard=-1", 2, "bf16"),
        ("safetensors", "dp_shard=2,tp=2", 4, "fp32"),
    ],
)
def test_the_weights_after_the_last_step_leave_the_run_as_one_file(
    tmp_path: Path, export: str, mesh: str, ranks: int, dtype: str
) -> None:
    """And on demand, from the newest checkpoint, on another number of ranks where the mesh lets it; the log stays."""
    script = write_script(tmp_path, export=export, mesh=mesh)
    file = tmp_path / "out" / f"model.{export}"
    training = Training(script, tmp_path / "run", ranks, {"--export": str(file), "--export-dtype": dtype})
    training.finish()
    expected = saved_weights(training.checkpoints / "step-12")
    exported = read(file)
    wanted = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[dtype]
    assert exported.keys() == expected.keys() - ({"head.weight"} if export == "safetensors" else set())
    for name, value in exported.items():
        assert torch.equal(value, expected[name].to(wanted)), name
    assert [path.name for path in file.parent.iterdir()] == [file.name]
    if mesh == "dp_shard=-1":
        content, log = file.read_bytes(), training.log.read_bytes()
        file.unlink()
        only = Only(script, training.folder, 1, training.options)
        process = only.run()
        assert process.returncode == 0, process.stderr
        assert (file.read_bytes(), training.log.read_bytes()) == (content, log)


@pytest.mark.slow
def test_there_is_nothing_to_export_on_demand_without_a_checkpoint(tmp_path: Path) -> None:
    script = write_script(tmp_path, export="pt")
    process = Only(script, tmp_path / "run", 1, {"--export": str(tmp_path / "model.pt")}).run()
    assert process.returncode != 0 and not (tmp_path / "model.pt").exists()
    assert "--export-only: expected a whole checkpoint" in process.stderr


@pytest.fixture(scope="module", params=["pt", "safetensors"])
def train(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    return load_script(tmp_path_factory.mktemp("module"), export=request.param)


@pytest.fixture
def file(train: ModuleType, tmp_path: Path) -> Path:
    return tmp_path / ("model.safetensors" if hasattr(train, "NAMES") else "model.pt")


class Various(nn.Module):
    """Ties, integers, an empty tensor and a scalar; and a buffer that no checkpoint holds."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(3, 5, bias=False)
        self.tied = nn.Linear(3, 5, bias=False)
        self.tied.weight = self.a.weight
        self.register_buffer("flag", torch.tensor([True, False, True]))
        self.register_buffer("count", torch.tensor(7))
        self.register_buffer("none", torch.empty(0, 4))
        self.register_buffer("ids", torch.arange(5))
        self.register_buffer("scratch", torch.ones(2), persistent=False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_ties_integers_scalars_and_empty_tensors_leave_too(train: ModuleType, file: Path, dtype: torch.dtype) -> None:
    model = Various()
    with joined():
        train.export_weights(model, file, dtype)
    exported = read(file)
    if file.suffix == ".pt":
        assert exported["tied.weight"].data_ptr() == exported["a.weight"].data_ptr()
        assert exported.pop("tied.weight").dtype == dtype
    expected = {"a.weight": model.a.weight.detach().to(dtype), "none": model.none.to(dtype)}
    expected |= {name: getattr(model, name) for name in ("flag", "count", "ids")}
    assert exported.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(exported[name], value) and exported[name].dtype == value.dtype, name


def test_the_library_of_the_format_reads_it(train: ModuleType, file: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    with joined():
        train.export_weights(Various(), file, torch.bfloat16)
    ours = read(file)
    theirs = safetensors.load_file(file) if file.suffix == ".safetensors" else torch.load(file, weights_only=True)
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_an_export_that_fails_leaves_what_was_there(
    train: ModuleType, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither half a file nor a temporary one: the file of an earlier export, whole."""
    with joined():
        train.export_weights(Various(), file, torch.float32)
        before = file.read_bytes()
        monkeypatch.setattr(train.os, "fsync", lambda _: (_ for _ in ()).throw(OSError("disk full")))
        with pytest.raises(OSError, match="disk full"):
            train.export_weights(Various(), file, torch.float16)
    assert file.read_bytes() == before
    assert [path.name for path in file.parent.iterdir()] == [file.name]


@pytest.mark.parametrize(
    ("options", "words"),
    [({"export_dtype": "fp8"}, "--export-dtype"), ({"export": "."}, "--export to be a file")],
)
def test_an_export_that_cannot_work_is_refused_before_the_training(
    train: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], options, words: str
) -> None:
    with pytest.raises(SystemExit):
        parse(train, monkeypatch, **options)
    assert words in capsys.readouterr().err
