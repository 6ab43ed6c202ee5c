"""The verb `convert`: what comes out is what went in, bit for bit, and what cannot be done is left undone."""

from __future__ import annotations

import json
import os
import pickle
import pty
import random
import shutil
import signal
import subprocess
import sys
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch
import torch.distributed.checkpoint as dcp
from pytorch_fsdp2_dcp.validate.checkpoint.dtypes import ITEM_SIZES
from pytorch_fsdp2_dcp.validate.command import main
from pytorch_fsdp2_dcp.validate.conversion import archive, output
from torch import Tensor, nn
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from ..checkpoint.saves import digest_in_memory, save
from ..checkpoint.test_values import parts
from ..commands import SKILL, assert_refused, fsdp2, fsdp2_json, measured
from ..schemas import CONVERT

IN_SAFETENSORS = (
    *("float64", "float32", "float16", "bfloat16", "complex64", "int64", "int32", "int16", "int8", "uint64", "uint32"),
    *("uint16", "uint8", "bool", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu"),
)
EVERYWHERE = [name for name in ITEM_SIZES if name != "float4_e2m1fn_x2"]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    warnings.filterwarnings("ignore", message="ComplexHalf support is experimental")


def convert(*arguments: str) -> None:
    assert main(["convert", *arguments]) == 0


def names(folder: str = ".") -> list[str]:
    return sorted(path.name for path in Path(folder).iterdir())


def bits(tensor: Tensor) -> bytes:
    return bytes(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy()) if tensor.numel() else b""


def assert_same(one: Any, other: Any) -> None:
    """Equal, and tensors bit for bit."""
    assert type(one) is type(other) or {type(one), type(other)} <= {Tensor, nn.Parameter}
    if isinstance(one, Tensor):
        assert (one.dtype, one.shape, bits(one)) == (other.dtype, other.shape, bits(other))
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for key, value in one.items():
            assert_same(value, other[key])
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other)
        for mine, theirs in zip(one, other, strict=True):
            assert_same(mine, theirs)
    else:
        assert one == other


def of_dtype(name: str) -> dict[str, Tensor]:
    """Random bits in the shapes that are easy to get wrong."""
    dtype = getattr(torch, name)

    def random_bits(*shape: int) -> Tensor:
        count = torch.Size(shape).numel()
        if name == "bool":
            return torch.randint(2, shape).bool()
        return torch.randint(256, (count * dtype.itemsize,), dtype=torch.uint8).view(dtype).reshape(shape)

    wide = random_bits(7, 5)
    return {
        "matrix": wide,
        "transposed": wide.t(),
        "a column": wide[:, 1:2],
        "scalar": random_bits(1).reshape(()),
        "nothing": random_bits(0, 3),
        "one": random_bits(1),
        "cube": random_bits(3, 4, 5).permute(2, 0, 1),
    }


@pytest.mark.parametrize("dtype", EVERYWHERE)
def test_each_dtype_and_shape_goes_around_bit_for_bit(dtype: str) -> None:
    state = of_dtype(dtype)
    save(Path("dcp"), state)
    torch.save(state, "plain.pt")
    convert("dcp", "from-dcp.pt")
    convert("plain.pt", "from-pt")
    convert("from-pt", "around.pt")
    for file in ("from-dcp.pt", "around.pt"):
        assert_same(torch.load(file, weights_only=True), state)
        assert_same(torch.load(file, weights_only=True, mmap=True), state)
    loaded = {key: torch.zeros_like(value) for key, value in state.items()}
    dcp.load(loaded, checkpoint_id="from-pt", no_dist=True)
    assert_same(loaded, state)


@pytest.mark.parametrize("dtype", IN_SAFETENSORS)
def test_each_dtype_that_safetensors_has_goes_around_bit_for_bit(dtype: str) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    state = of_dtype(dtype)
    save(Path("dcp"), state)
    convert("dcp", "a.safetensors")
    if dtype != "float8_e8m0fnu":  # which the package learnt late
        assert_same(safetensors.load_file("a.safetensors"), state)
    convert("a.safetensors", "again")
    convert("again", "again.pt")
    assert_same(torch.load("again.pt", weights_only=True), state)


def test_a_file_of_safetensors_is_as_the_package_writes_it() -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    state = {"b": torch.randn(3), "a": torch.randn(2, 2).bfloat16(), "c": torch.ones(5, dtype=torch.uint8)}
    safetensors.save_file(state, "theirs.safetensors", metadata={"format": "pt"})
    convert("theirs.safetensors", "there")
    convert("there", "ours.safetensors")
    assert Path("ours.safetensors").read_bytes() == Path("theirs.safetensors").read_bytes()


def test_random_blocks_and_strides_become_one_tensor() -> None:
    """As FSDP with TP saves them: blocks of two dimensions, which are not consecutive in the whole."""
    generator = random.Random(0)
    state, cuts = {}, {}
    for number in range(20):
        shape = [generator.randrange(1, 9) for _ in range(generator.randrange(1, 4))]
        state[f"t{number}"] = torch.randn(shape).to(generator.choice([torch.float32, torch.bfloat16]))
        cuts[f"t{number}"] = [parts(generator, size) for size in shape]
    save(Path("cut"), state, cuts, files=3)
    convert("cut", "whole.pt")
    assert_same(torch.load("whole.pt", weights_only=True), state)


NESTED = {
    "model": {"layer.weight": torch.arange(6.0).reshape(2, 3), "layer.bias": torch.zeros(3)},
    "optimizer": {
        "state": {"layer.weight": {"step": torch.tensor(3.0), "exp_avg": torch.ones(2, 3)}},
        "param_groups": [{"lr": 0.1, "betas": (0.9, 0.999), "params": ["layer.weight"]}, {"lr": 0.2, "params": []}],
    },
    "losses": [1.5, float("inf"), -0.0],
    "mixed": [torch.ones(2), None, {"deep": [1, [torch.zeros(1)]]}],
    "step": 7,
    "text": "naïve ☃ \udc80",
    "numbers": (0, 255, 256, -1, 2**31, -(2**31), 2**70, True, None),
    "bytes": b"\x00\xff",
    "set": {"a", "b"},
    "dtype": torch.bfloat16,
    "a tuple": (torch.arange(4), {"k": torch.zeros(0)}),
}


def test_nested_state_and_plain_values_come_back_as_torch_gives_them() -> None:
    save(Path("dcp"), NESTED)
    convert("dcp", "ours.pt")
    dcp_to_torch_save("dcp", "theirs.pt")
    ours = torch.load("ours.pt", weights_only=True)
    assert_same(ours, torch.load("theirs.pt", weights_only=False))
    assert_same(ours, NESTED)
    torch.save(NESTED, "plain.pt")
    convert("plain.pt", "again")
    convert("again", "again.pt")
    assert_same(torch.load("again.pt", weights_only=True), NESTED)


def test_dcp_loads_plain_values_into_what_is_there() -> None:
    torch.save(NESTED, "plain.pt")
    convert("plain.pt", "dcp")
    state: dict[str, Any] = {
        "model": {key: torch.empty_like(value) for key, value in NESTED["model"].items()},
        "numbers": None,
        "dtype": None,
        "a tuple": None,
    }
    dcp.load(state, checkpoint_id="dcp", no_dist=True)
    assert_same(state, {key: NESTED[key] for key in state})


def test_the_metadata_is_what_dcp_itself_writes() -> None:
    """Read by torch; but for places and names of the save, which differ."""
    save(Path("theirs"), NESTED, files=1)
    convert("theirs", "ours")
    ours, theirs = (dcp.FileSystemReader(folder).read_metadata() for folder in ("ours", "theirs"))
    assert ours.state_dict_metadata == theirs.state_dict_metadata
    assert ours.planner_data == theirs.planner_data
    assert ours.storage_data.keys() == theirs.storage_data.keys()
    assert ours.version == theirs.version
    found = fsdp2("inspect", "ours", cwd=Path.cwd())
    assert found.returncode == 0, found.stdout


def test_a_checkpoint_is_converted_to_another_of_dcp() -> None:
    save(Path("cut"), {"m": {"w": torch.arange(12.0).reshape(3, 4)}, "n": 1}, {"m.w": [[1, 2], [2, 2]]})
    convert("cut", "whole", "--keys", "m.*", "--dtype", "fp16")
    state = {"m": {"w": torch.zeros(3, 4, dtype=torch.float16)}}
    dcp.load(state, checkpoint_id="whole", no_dist=True)
    assert_same(state["m"]["w"], torch.arange(12.0).reshape(3, 4).half())


def test_tied_parameters_stay_one_in_a_torch_file_and_are_whole_under_each_name() -> None:
    weight = nn.Parameter(torch.randn(4, 3))
    torch.save({"embed": weight, "head": weight, "rows": weight.detach()[1:]}, "tied.pt")
    convert("tied.pt", "again.pt")
    again = torch.load("again.pt", weights_only=True)
    assert again["embed"].data_ptr() == again["head"].data_ptr()
    assert again["rows"].untyped_storage().nbytes() == 36  # no more than its own elements
    convert("tied.pt", "dcp")
    convert("dcp", "tied.safetensors")
    convert("tied.safetensors", "last.pt")
    for loaded in (again, torch.load("last.pt", weights_only=True)):
        assert_same(loaded, {"embed": weight, "head": weight, "rows": weight[1:]})


def test_a_state_dict_of_a_module_is_read_with_its_versions_of_modules() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    torch.save(model.state_dict(), "model.pt")
    convert("model.pt", "dcp", "--rename", "*=model.*")
    fresh = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    state = {"model": fresh.state_dict()}
    dcp.load(state, checkpoint_id="dcp", no_dist=True)
    assert_same(dict(state["model"]), dict(model.state_dict()))


def test_the_keys_of_a_part_become_those_of_a_model() -> None:
    model = {"0.weight": torch.randn(2, 2), "0.bias": torch.randn(2)}
    save(Path("run"), {"train": {"model": model, "step": 3}, "rng-0": {"a": 1}})
    convert("run", "model.pt", "--keys", "train.model.*", "--rename", "train.model.*=*")
    assert_same(torch.load("model.pt", weights_only=True), model)
    nn.Sequential(nn.Linear(2, 2)).load_state_dict(torch.load("model.pt", weights_only=True))
    convert("run", "nested.pt", "--keys", "!rng-*", "--rename", "train.*=state.*", "--rename", "state.step=step")
    assert_same(torch.load("nested.pt", weights_only=True), {"state": {"model": model}, "step": 3})
    convert("run", "other.pt", "--keys", "*.weight", "--keys", "*.step", "--rename", "train.model.*.weight=*.w")
    assert_same(torch.load("other.pt", weights_only=True), {"0.w": model["0.weight"], "train": {"step": 3}})


def test_a_prefix_is_added_and_a_folder_of_steps_means_its_latest_whole() -> None:
    for step in (1, 2, 3):
        save(Path(f"run/step-{step}"), {"w": torch.full((2,), float(step))})
    Path("run/step-3/.metadata").unlink()
    convert("run", "model.safetensors", "--rename", "*=model.*")
    convert("model.safetensors", "model.pt")
    assert_same(torch.load("model.pt", weights_only=True), {"model.w": torch.full((2,), 2.0)})


@pytest.mark.parametrize("to", ["float32", "bfloat16", "float16", "float64"])
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_dtypes_are_converted_as_torch_does(dtype: str, to: str) -> None:
    """Random numbers, ties, the smallest and what is no number; whole numbers stay whole numbers."""
    halfway = torch.tensor([1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-11, 1 + 3 * 2**-11, 1 + 2**-11 + 2**-40, 2**-149, 2**-25])
    special = torch.tensor([0.0, -0.0, float("inf"), -float("inf"), float("nan"), 6e-8, -448.0])
    numbers = torch.cat([halfway.double(), special.double(), torch.randn(2000, dtype=torch.float64)])
    numbers = numbers.to(torch.float32).to(getattr(torch, dtype)) if "8" in dtype else numbers.to(getattr(torch, dtype))
    state = {"x": numbers, "n": torch.arange(3), "c": torch.ones(2, dtype=torch.complex64)}
    save(Path("dcp"), state)
    convert("dcp", "cast.pt", "--dtype", to)
    cast = torch.load("cast.pt", weights_only=True)
    expected = numbers.to(getattr(torch, to))
    assert cast["x"].dtype == expected.dtype
    ordinary = ~numbers.float().isnan()
    assert bits(cast["x"][ordinary]) == bits(expected[ordinary])
    assert cast["x"][~ordinary].isnan().all()
    assert_same({"n": cast["n"], "c": cast["c"]}, {"n": state["n"], "c": state["c"]})


def test_a_number_that_would_become_infinite_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    save(Path("dcp"), {"w": torch.tensor([1.0, 70000.0]), "v": torch.tensor([3.4e38])})
    assert main(["convert", "dcp", "a.pt", "--dtype", "fp16", "--keys", "w"]) == 2
    assert "w: holds 70000, which is beyond the largest float16" in capsys.readouterr().err
    assert main(["convert", "dcp", "a.pt", "--dtype", "bf16"]) == 2
    assert "v: holds 3.4e+38" in capsys.readouterr().err
    convert("dcp", "a.pt", "--dtype", "bf16", "--keys", "w")
    assert names() == ["a.pt", "dcp"]


def test_shards_are_as_large_as_they_may_be_and_have_an_index() -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    state = {f"w{n}": torch.randn(25) for n in range(5)} | {"large": torch.randn(100)}
    save(Path("dcp"), state)
    convert("dcp", "hf", "--shard-size", "0.2kB")
    files = names("hf")
    assert files == [*(f"model-0000{n}-of-00004.safetensors" for n in range(1, 5)), "model.safetensors.index.json"]
    index = json.loads(Path("hf/model.safetensors.index.json").read_text())
    assert index["metadata"] == {"total_size": 900}
    loaded = {}
    for name in files[:-1]:
        part = safetensors.load_file(f"hf/{name}")
        assert {key for key, file in index["weight_map"].items() if file == name} == part.keys()
        assert sum(tensor.nbytes for tensor in part.values()) <= 200 or part.keys() == {"large"}
        loaded |= part
    assert_same(loaded, state)
    convert("hf", "again.pt")
    assert_same(torch.load("again.pt", weights_only=True), state)
    convert("dcp", "one", "--shard-size", "1KiB")
    assert names("one") == ["model.safetensors"]


def test_the_document_has_the_digests_that_inspect_gives() -> None:
    save(Path("dcp"), NESTED)
    found = fsdp2_json("convert", "dcp", "a.pt", cwd=Path.cwd())
    jsonschema.validate(found, CONVERT)
    digests = {tensor["key"]: tensor["digest"] for tensor in found["tensors"]}
    assert digests["model.layer.weight"] == digest_in_memory(NESTED["model"]["layer.weight"])
    assert "step" in found["objects"]
    assert found["files"] == [{"file": "a.pt", "bytes": Path("a.pt").stat().st_size}]


def test_it_needs_no_torch(tmp_path: Path) -> None:
    save(tmp_path / "dcp", {"w": torch.ones(3)})
    (tmp_path / "none").mkdir()
    (tmp_path / "none" / "torch.py").write_text("raise ModuleNotFoundError('torch')\n")
    for source, target in (("dcp", "a.pt"), ("a.pt", "a.safetensors"), ("a.safetensors", "again")):
        process = fsdp2("convert", source, target, cwd=tmp_path, PYTHONPATH=str(tmp_path / "none"))
        assert process.returncode == 0, process.stderr
        assert process.stderr == ""


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """A whole checkpoint, one that is not, and files that are nothing."""
    save(tmp_path / "dcp", {"model": {"w": torch.ones(3), "v": torch.ones(3)}, "path": Path("x"), "lr": 0.1})
    save(tmp_path / "short", {"w": torch.ones(300)}, files=1)
    (data,) = (tmp_path / "short").glob("*.distcp")
    data.write_bytes(data.read_bytes()[:500])
    (tmp_path / "empty").mkdir()
    (tmp_path / "dcp" / "sub").mkdir()
    shutil.copytree(tmp_path / "short", tmp_path / "newer")
    newer = pickle.loads((tmp_path / "newer" / ".metadata").read_bytes())
    newer.version = "9.0.0"
    (tmp_path / "newer" / ".metadata").write_bytes(pickle.dumps(newer))
    (tmp_path / "old").write_bytes(b"\x80\x02}q\x00.")
    torch.save([1, 2], tmp_path / "list.pt")
    torch.save({"state": {0: torch.ones(1)}}, tmp_path / "numbers.pt")
    torch.save({"w": torch.ones(2, dtype=torch.complex64).conj()}, tmp_path / "conj.pt")
    torch.save({"a.b": torch.ones(1), "a": {"b": torch.ones(1)}}, tmp_path / "twice.pt")
    torch.save({"c": torch.ones(2, dtype=torch.complex128)}, tmp_path / "wide.pt")
    torch.save({"l": [torch.ones(1), torch.ones(1)]}, tmp_path / "parts.pt")
    torch.save(nn.Linear(2, 2), tmp_path / "module.pt")
    (tmp_path / "cut.pt").write_bytes((tmp_path / "list.pt").read_bytes()[:200])
    (tmp_path / "no.safetensors").write_bytes(b"no")
    return tmp_path


REFUSED: dict[str, tuple[list[str], list[str]]] = {
    "no source": (["nowhere", "a.pt"], ["nowhere", "does not exist"]),
    "no name": (["", "a.pt"], ["''", "does not exist"]),
    "an empty folder": (["empty", "a.pt"], ["empty", "no checkpoint"]),
    "newer metadata": (["newer", "a.pt"], ["newer/.metadata", "9.0.0", "up to 1"]),
    "one that is not whole": (["short", "a.pt"], ["short", "is not whole", "needed"]),
    "no zip": (["old", "a.safetensors"], ["old", "no zip archive"]),
    "half a zip": (["cut.pt", "a"], ["cut.pt", "not what torch.save writes"]),
    "no safetensors": (["no.safetensors", "a"], ["no.safetensors", "cut short"]),
    "no dict": (["list.pt", "a"], ["list.pt", "holds a list"]),
    "a module": (["module.pt", "a"], ["module.pt", "torch.nn.modules.linear.Linear"]),
    "a lazy conjugate": (["conj.pt", "a"], ["conj.pt", "resolve_conj"]),
    "the same key twice": (["twice.pt", "a"], ["twice.pt", "a.b"]),
    "keys that are numbers": (["numbers.pt", "a.pt"], ["numbers.pt", "state.0"]),
    "what is opaque": (["dcp", "a.pt"], ["path", "pathlib", "--keys '!path'"]),
    "an object in safetensors": (["dcp", "a.safetensors", "--keys", "!path"], ["lr", "is no tensor"]),
    "a dtype that safetensors lacks": (["wide.pt", "a.safetensors"], ["c", "complex128"]),
    "a part of a list": (["parts.pt", "a.pt", "--keys", "l.1"], ["l", "is a list"]),
    "keys that match nothing": (["dcp", "a.pt", "--keys", "model"], ["--keys model", "matches none", "model.w"]),
    "all keys left out": (["list.pt", "a", "--keys", "!*"], ["list.pt"]),
    "a name that matches nothing": (["dcp", "a.pt", "--keys", "m*", "--rename", "x.*=*"], ["x.*=*", "matches no key"]),
    "a name for two": (["dcp", "a.pt", "--keys", "m*", "--rename", "model.w=model.v"], ["model.w and model.v"]),
    "another number of stars": (["dcp", "a.pt", "--rename", "a.*=b"], ["a.*=b", "as many"]),
    "no new name": (["dcp", "a.pt", "--rename", "a"], ["OLD=NEW"]),
    "what exists": (["dcp", "list.pt"], ["list.pt", "exists", "never overwritten"]),
    "a folder that exists": (["dcp", "empty"], ["empty", "exists"]),
    "itself": (["dcp", "dcp"], ["dcp", "exists"]),
    "in itself": (["dcp", "dcp/a.pt", "--keys", "m*"], ["dcp/a.pt", "lies in the checkpoint"]),
    "in a folder in itself": (["dcp", "dcp/sub/a", "--keys", "m*"], ["dcp/sub/a", "lies in the checkpoint"]),
    "a URI to write to": (["dcp", "s3://bucket/a.pt"], ["s3://bucket/a.pt", "is a URI"]),
    "no name to write to": (["dcp", ""], ["''", "is no name"]),
    "no folder for it": (["dcp", "far/a.pt"], ["far/a.pt", "no folder far"]),
    "a shard size for one file": (["dcp", "a.safetensors", "--shard-size", "1GB"], ["--shard-size"]),
    "no size": (["dcp", "a", "--shard-size", "many"], ["--shard-size many", "5GB"]),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_done_is_one_line_and_leaves_nothing(case: str, sources: Path) -> None:
    before = names()
    arguments, words = REFUSED[case]
    assert_refused(fsdp2("convert", *arguments, cwd=sources), *words)
    assert names() == before


def test_a_hostile_file_is_refused_by_the_name_of_what_it_tried_and_runs_nothing() -> None:
    class Hostile:
        def __reduce__(self) -> Any:
            return os.system, ("touch ran",)

    torch.save({"w": torch.ones(2), "x": Hostile()}, "hostile.pt")
    assert_refused(fsdp2("convert", "hostile.pt", "dcp", cwd=Path.cwd()), "hostile.pt", "posix.system")
    save(Path("hostile"), {"w": torch.ones(2), "x": Hostile()})
    assert_refused(fsdp2("convert", "hostile", "a.pt", cwd=Path.cwd()), "x", "posix.system")
    assert not Path("ran").exists()


A_DICT = b"}X\x01\x00\x00\x00a"  # and the key of its value


def pickle_of(body: bytes) -> None:
    with zipfile.ZipFile("deep.pt", "w") as file:
        file.writestr("archive/data.pkl", b"\x80\x02" + body + b".")


@pytest.mark.parametrize(
    "body",
    [
        A_DICT + b"(" * 200 + b"t" * 200 + b"s",
        b"}q\x00X\x01\x00\x00\x00ah\x00s",  # a dict that is in itself
        A_DICT + b"Nq\x00" + b"".join(b"h%c" % n + b"h%c" % n + b"\x86q%c" % (n + 1) for n in range(60)) + b"s",
    ],
    ids=["deep", "circular", "exponential"],
)
def test_a_file_of_a_few_bytes_cannot_ask_for_more_than_there_is(body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    from pytorch_fsdp2_dcp.validate.checkpoint import archives

    monkeypatch.setattr(archives, "MOST", 10_000)
    pickle_of(body)
    assert main(["convert", "deep.pt", "dcp"]) == 2
    assert names() == ["deep.pt"]


def test_a_large_archive_is_written_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the form that begins at four gigabytes, at a kilobyte."""
    monkeypatch.setattr(archive, "_LARGE", 1000)
    state = {f"w{n}": torch.randn(10 + 90 * n) for n in range(6)}
    save(Path("dcp"), state)
    convert("dcp", "large.pt")
    assert_same(torch.load("large.pt", weights_only=True), state)
    assert_same(torch.load("large.pt", weights_only=True, mmap=True), state)
    with zipfile.ZipFile("large.pt") as file:
        assert file.testzip() is None
    convert("large.pt", "again.safetensors")


def test_a_file_is_a_zip_whose_records_are_aligned_and_checked() -> None:
    save(Path("dcp"), {"a": torch.randn(3), "b": torch.randn(100)})
    convert("dcp", "a.pt")
    with zipfile.ZipFile("a.pt") as file:
        assert file.testzip() is None
        data = Path("a.pt").read_bytes()
        for record in file.infolist():
            start = record.header_offset + 30 + int.from_bytes(
                data[record.header_offset + 26 : record.header_offset + 28], "little"
            ) + int.from_bytes(data[record.header_offset + 28 : record.header_offset + 30], "little")  # fmt: skip
            assert start % 64 == 0


@pytest.mark.parametrize("target", ["a.pt", "a.safetensors", "a"])
def test_what_is_not_read_back_as_it_was_written_fails_and_leaves_nothing(
    target: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write = output.Output.write

    def lossy(self: output.Output, data: Any) -> None:
        write(self, bytes(data).replace(b"\x00\x00\x80\x3f", b"\x00\x00\x81\x3f"))

    save(Path("dcp"), {"w": torch.ones(3)})
    monkeypatch.setattr(output.Output, "write", lossy)
    assert main(["convert", "dcp", target]) == 1
    assert "w has other elements" in capsys.readouterr().err
    assert names() == ["dcp"]


LIMITED = """
import resource, runpy, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
sys.argv = ["fsdp2", *sys.argv[1:]]
runpy.run_path({skill!r}, run_name="__main__")
"""


@pytest.mark.slow
@pytest.mark.parametrize("target", ["a.pt", "a.safetensors", "a"])
def test_a_disk_that_is_full_half_way_leaves_nothing(target: str, tmp_path: Path) -> None:
    """A limit on the size of files fails a write as a full disk does."""
    save(tmp_path / "dcp", {f"w{n}": torch.randn(10_000) for n in range(4)})
    program = LIMITED.format(skill=str(SKILL / "__main__.py"))
    process = subprocess.run(
        [sys.executable, "-c", program, "convert", "dcp", target], capture_output=True, text=True, check=False
    )
    assert_refused(process, target, "File too large", "nothing was left")
    assert names() == ["dcp"]


def test_what_will_not_fit_is_not_begun(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    save(Path("dcp"), {"w": torch.ones(30_000)})
    monkeypatch.setattr(output.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 100_000}))
    assert main(["convert", "dcp", "a.pt"]) == 2
    assert "100 kB are free, 122 kB are needed" in capsys.readouterr().err


def sigterm() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def ctrl_c() -> None:
    raise KeyboardInterrupt  # SIGINT is ignored in a shell's background


@pytest.mark.parametrize("interruption", [ctrl_c, sigterm])
def test_an_interrupted_conversion_leaves_nothing(
    interruption: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = output.Output.stream

    def interrupted(self: output.Output, *arguments: Any, **options: Any) -> int:
        interruption()
        return stream(self, *arguments, **options)

    save(Path("dcp"), {"w": torch.ones(3)})
    monkeypatch.setattr(output.Output, "stream", interrupted)
    for target in ("a.pt", "a"):
        with pytest.raises((KeyboardInterrupt, SystemExit)):
            main(["convert", "dcp", target])
    assert names() == ["dcp"]


KILLED = """
import os, runpy, signal, sys
program = runpy.run_path({skill!r})
program["register"]()
from pytorch_fsdp2_dcp.validate.conversion import output
output.Output.finish = lambda self: os.kill(os.getpid(), signal.SIGKILL)
program["main"](sys.argv[1:])
"""


@pytest.mark.slow
@pytest.mark.parametrize("target", ["a.pt", "a.safetensors", "a"])
def test_a_killed_conversion_leaves_nothing_under_the_name_of_the_destination(target: str) -> None:
    """All is written by then, and neither read back nor on the disk; what is left is not in the way of another try."""
    save(Path("dcp"), {"w": torch.ones(3)})
    program = KILLED.format(skill=str(SKILL / "__main__.py"))
    process = subprocess.run([sys.executable, "-c", program, "convert", "dcp", target], check=False)
    assert process.returncode == -signal.SIGKILL
    (left,) = set(names()) - {"dcp"}
    assert left.startswith("a.part-")
    convert("dcp", target)


def test_a_destination_that_comes_to_exist_meanwhile_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stream = output.Output.stream

    def meanwhile(self: output.Output, *arguments: Any, **options: Any) -> int:
        Path("a.pt").write_text("mine")
        return stream(self, *arguments, **options)

    save(Path("dcp"), {"w": torch.ones(3)})
    monkeypatch.setattr(output.Output, "stream", meanwhile)
    assert main(["convert", "dcp", "a.pt"]) == 2
    assert "meanwhile" in capsys.readouterr().err
    assert Path("a.pt").read_text() == "mine"
    assert names() == ["a.pt", "dcp"]


def test_progress_is_shown_on_a_terminal_only(tmp_path: Path) -> None:
    from pytorch_fsdp2_dcp.validate.conversion import progress

    save(tmp_path / "dcp", {f"w{n}": torch.zeros(1000) for n in range(3)})
    program = (
        f"import runpy, sys\nsys.argv = ['fsdp2', 'convert', 'dcp', 'a.pt']\n"
        f"main = runpy.run_path({str(SKILL / '__main__.py')!r})\nmain['register']()\n"
        f"from pytorch_fsdp2_dcp.validate.conversion import progress\nprogress.INTERVAL = 0\nmain['main']()\n"
    )
    leader, follower = pty.openpty()
    process = subprocess.run([sys.executable, "-c", program], stderr=follower, stdout=subprocess.PIPE, check=False)
    os.close(follower)
    shown = os.read(leader, 100_000).decode()
    os.close(leader)
    assert process.returncode == 0
    assert "writing: 12 kB of 12 kB" in shown
    assert "reading back: 12 kB of 12 kB" in shown
    assert "/s, 0 s left" in shown
    assert shown.endswith("\r\x1b[K")
    assert progress.INTERVAL > 0


@pytest.mark.matrix
@pytest.mark.slow
@pytest.mark.parametrize("target", ["a.pt", "a.safetensors", "a", "a --dtype bf16"])
def test_memory_stays_bounded_whatever_the_size_of_the_tensors(target: str, tmp_path: Path) -> None:
    """600 MB in blocks of two dimensions, one of which is transposed, take no more than 200 MB: not even a tensor."""
    state = {"w": torch.zeros(10_000, 10_000), "t": torch.zeros(5_000, 10_000).t()}
    save(tmp_path / "dcp", state, {"w": [[4_000, 6_000], [2_500] * 4]})
    code, most = measured("convert", "dcp", *target.split(), cwd=tmp_path)
    assert code == 0
    assert most < 200_000_000


@pytest.mark.slow
def test_a_model_of_transformers_is_loaded_from_its_shards(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, tie_word_embeddings=True,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config)
    save(tmp_path / "run", {"train": {"model": model.state_dict(), "step": 1}})
    arguments = ("--keys", "train.model.*", "--rename", "train.model.*=*")
    for folder, size in (("shards", "8kB"), ("whole", "1GB")):
        convert("run", folder, *arguments, "--shard-size", size)
        config.save_pretrained(folder)
        loaded, told = transformers.LlamaForCausalLM.from_pretrained(folder, output_loading_info=True)
        assert not any(told.values()), told
        assert_same(dict(loaded.state_dict()), dict(model.state_dict()))
    model.save_pretrained("theirs", max_shard_size="8kB")
    convert("theirs", "from-theirs.pt")
    theirs = torch.load("from-theirs.pt", weights_only=True)
    assert_same(theirs, {key: value for key, value in model.state_dict().items() if key in theirs})
