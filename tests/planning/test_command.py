"""The command: its tables, its document, and one line for what it cannot plan."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import jsonschema
import pytest
from pytorch_fsdp2_dcp.validate.command import main

from ..commands import assert_refused, fsdp2, fsdp2_json, measured
from ..schemas import PLAN
from .test_formulas import LLAMA_3_8B
from .test_reality import NET

NUMBERS = ("plan", "--params", "125M", "--layers", "12", "--hidden", "768", "--mesh", "dp_shard=8")


def test_the_tables(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*NUMBERS, "--bandwidth", "1GB/s", "--mtbf", "30d", "--fits", "80GB", "--precision", "bf16"]) == 0
    out = capsys.readouterr().out
    for line in (
        "12 layers of 768: 125 M parameters in 111 tensors",
        "  parameters       62.5 MB",
        "  total          1.51 GB  in 9 files",
        "fits into 80 GB, best first",
    ):
        assert line in out, out


def test_the_document(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*NUMBERS, "--bandwidth", "1GB/s", "--mtbf", "30d", "--fits", "1kB", "--format", "json"]) == 1
    document = json.loads(capsys.readouterr().out)
    jsonschema.validate(document, PLAN)
    assert document["fits"]["meshes"] == []
    assert document["fits"]["least"]["peak"] > 1000
    assert sum(document["memory"]["at_peak"].values()) == document["memory"]["peak"]


@pytest.mark.slow
def test_the_planning_of_many_ranks(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A save of a small model: measured where it can be, and extrapolated to 16,384 ranks."""
    monkeypatch.setattr("pytorch_fsdp2_dcp.validate.planning.scale.ITEMS_LIMIT", 20_000)
    small = ("plan", "--params", "5M", "--layers", "1", "--hidden", "64", "--mesh", "dp_shard=-1")
    assert main([*small, "--scale", "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    jsonschema.validate(document, PLAN)
    rows = document["planning"]
    assert [row["world"] for row in rows] == [2**power for power in range(6, 15)]
    assert rows[0]["measured"] and not rows[-1]["measured"]
    assert rows[0]["metadata"] < rows[-1]["metadata"]


@pytest.mark.matrix
@pytest.mark.slow
def test_the_planning_of_a_large_model_takes_no_more_memory_than_of_a_small_one(tmp_path: Path) -> None:
    """Of 126 layers, the plans of 128 ranks alone would take three gigabytes."""
    large = ("--params", "405B", "--layers", "126", "--hidden", "16384", "--kv-heads", "8", "--nodes", "16")
    code, most = measured("plan", *large, "--scale", cwd=tmp_path)
    assert code == 0
    assert most < 1_500_000_000


@pytest.mark.slow
def test_a_disk_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*NUMBERS, "--measure", str(tmp_path), "--format", "json"]) == 0
    saved = json.loads(capsys.readouterr().out)["checkpoint"]
    assert saved["seconds"] == pytest.approx(saved["node"] / saved["bandwidth"])
    assert not list(tmp_path.iterdir())


def test_a_config_with_tensor_parallelism_has_formulas(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_3_8B))
    assert main(["plan", "--config", str(tmp_path), "--mesh", "dp_shard=8,tp=2", "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["memory"]["how"] == "formulas"
    assert document["model"]["parameters"] == 8_030_261_248


@pytest.mark.matrix
@pytest.mark.slow
def test_formulas_come_near_to_the_tracker(tmp_path: Path) -> None:
    """Of a Llama of four layers: sharded state is equal, activations within 15 %, the peak within 20 %."""
    config = {**LLAMA_3_8B, "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 4, "hidden_size": 1024,
              "intermediate_size": 3584, "vocab_size": 32000}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    tracked = fsdp2_json("plan", "--config", str(tmp_path), "--fits", "10GB", cwd=tmp_path)
    assert tracked["memory"]["how"] == "tracked"
    by_tp = {("tp" in found["mesh"], found["how"]) for found in tracked["fits"]["meshes"]}
    assert by_tp == {(False, "tracked"), (True, "formulas")}
    shape = ("--layers", "4", "--hidden", "1024", "--heads", "32", "--kv-heads", "8", "--vocab", "32000")
    numbers = fsdp2_json("plan", "--params", str(tracked["model"]["parameters"]), *shape, cwd=tmp_path)
    assert numbers["memory"]["how"] == "formulas"
    for category, tolerance in (
        ("parameters", 0.0), ("gradients", 0.0), ("optimizer", 0.0), ("activations", 0.15), ("peak", 0.2)
    ):  # fmt: skip
        assert numbers["memory"][category] == pytest.approx(tracked["memory"][category], rel=tolerance), category


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("plan.pdf", ".png or .svg"),
        ("nowhere/plan.png", "No such file or directory"),
        ("folder.svg", "not a file"),
        ("plan.png", "matplotlib extra plot pip install matplotlib"),
    ],
)
def test_a_picture_that_cannot_be_is_refused_before_anything_is_planned(
    name: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "folder.svg").mkdir()
    monkeypatch.chdir(tmp_path)
    planning = "pytorch_fsdp2_dcp.validate.planning"
    monkeypatch.setattr(f"{planning}.plot.has_matplotlib", lambda: False)
    monkeypatch.setattr(f"{planning}.plan.answer", lambda question: pytest.fail(f"it planned {question}"))
    assert main([*NUMBERS, "--plot", name]) == 2
    out, err = capsys.readouterr()
    assert (out, len(err.splitlines())) == ("", 1)
    for word in ("--plot", *words.split()):
        assert word in err
    assert [path.name for path in tmp_path.iterdir()] == ["folder.svg"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "--config --model --params"),
        (("--params", "lots", "--layers", "2", "--hidden", "64"), "--params lots"),
        (("--params", "8B"), "--layers"),
        (("--params", "1k", "--layers", "2", "--hidden", "64"), "alone"),
        (("--config", "missing"), "config.json"),
        (("--config", "empty.json"), "num_hidden_layers"),
        (("--config", "list.json"), "JSON object"),
        (("--config", "heads.json"), "5 heads do not divide 4096"),
        (("--config", "kv_heads.json"), "5 key do not divide 32"),
        (("--config", "text.json"), "num_attention_heads '4'"),
        (("--config", "experts.json", "--mesh", "dp_shard=2,tp=2"), "num_local_experts"),
        (("--config", "empty.json", "--layers", "3"), "--layers"),
        (("--model", "net:build"), "--block"),
        (("--model", "net:build", "--block", "net:Block", "--mesh", "dp_shard=2,tp=2"), "tp need --parallelize"),
        (("--model", "net:build", "--block", "net:Block", "--parallelize", "net:split"), "tp need --parallelize"),
        (("--params", "1B", "--layers", "2", "--hidden", "64", "--parallelize", "net:split"), "--parallelize --model"),
        (("--params", "1B", "--layers", "2", "--hidden", "64", "--mtbf", "1y"), "--bandwidth"),
        (("--params", "1B", "--layers", "2", "--hidden", "64", "--mesh", "dp=2"), "mesh dim"),
        (("--params", "1B", "--layers", "2", "--hidden", "512", "--mesh", "dp_shard=2,tp=3"), "tp=3 4 heads"),
        (("--params", "1B", "--layers", "2", "--hidden", "512", "--kv-heads", "2", "--mesh", "dp_shard=2,tp=4"), "key"),
        (("--params", "1B", "--layers", "2", "--hidden", "64", "--fits", "big"), "--fits big"),
        (("--params", "1B", "--layers", "2", "--hidden", "64", "--measure", "missing"), "--measure missing"),
    ],
)  # fmt: skip
def test_what_cannot_be_planned_is_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    words: str,
) -> None:
    (tmp_path / "empty.json").write_text("{}")
    (tmp_path / "list.json").write_text("[]")
    for name, wrong in (("heads", {"num_attention_heads": 5}), ("kv_heads", {"num_key_value_heads": 5}),
                        ("text", {"num_attention_heads": "4"})):  # fmt: skip
        (tmp_path / f"{name}.json").write_text(json.dumps({**LLAMA_3_8B, **wrong}))
    (tmp_path / "experts.json").write_text(json.dumps({**LLAMA_3_8B, "num_local_experts": 8}))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("pytorch_fsdp2_dcp.validate.planning.plan.has_transformers", lambda: False)
    try:
        code = main(["plan", *arguments])
    except SystemExit as error:  # of argparse
        code = int(error.code or 0)
    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    for word in words.split():
        assert word in err
    if arguments:
        assert len(err.splitlines()) == 1


@pytest.mark.parametrize("field", ["num_hidden_layers", "hidden_size", "vocab_size"])
def test_a_config_that_lacks_a_size_is_not_filled_up_with_that_of_another_model(
    field: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Transformers would: of 32 layers of 4096."""
    config = tmp_path / "config.json"
    config.write_text(json.dumps({key: value for key, value in LLAMA_3_8B.items() if key != field}))
    monkeypatch.setattr("pytorch_fsdp2_dcp.validate.planning.plan.has_transformers", lambda: True)
    assert main(["plan", "--config", str(config)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{config}: has no {field}" in line


@pytest.mark.slow
def test_a_model_that_fails_is_one_line(tmp_path: Path) -> None:
    """What transformers and torch have to say besides is left out."""
    pytest.importorskip("transformers")
    small = {"hidden_size": 64, "num_hidden_layers": 1, "vocab_size": 100, "intermediate_size": 128}
    for name, config, words in (
        ("bert", {"model_type": "bert", "num_attention_heads": 4, "max_position_embeddings": 512}, "a step under fake"),
        ("llama", {"model_type": "llama", "num_attention_heads": 3}, "number of attention heads"),
    ):
        (tmp_path / f"{name}.json").write_text(json.dumps({**small, **config}))
        assert_refused(fsdp2("plan", "--config", f"{name}.json", cwd=tmp_path), f"{name}.json", words)


@pytest.mark.slow
def test_a_model_that_cannot_be_built_is_one_line(tmp_path: Path) -> None:
    shutil.copy(NET, tmp_path)
    for model, block, words in (
        ("net:broken", "net:Block", ("--model net:broken", "RuntimeError", "no such")),
        ("net:build", "net:Missing", ("--block net:Missing", "AttributeError")),
        ("net:build", "torch.nn:Conv2d", ("--block", "no module")),
        ("not a module", "net:Block", ("--model", "package.module:name")),
    ):
        assert_refused(fsdp2("plan", "--model", model, "--block", block, cwd=tmp_path), *words)


@pytest.mark.slow
def test_what_splits_no_model_is_one_line(tmp_path: Path) -> None:
    shutil.copy(NET, tmp_path)
    model = ("plan", "--model", "net:build", "--block", "net:Block", "--mesh", "dp_shard=2,tp=2", "--parallelize")
    for function, words in (
        ("net:splits_nothing", "has split no parameter"),
        ("net:splits_what_is_not_there", "AttributeError"),
        ("net.split", "package.module:name"),
    ):
        assert_refused(fsdp2(*model, function, cwd=tmp_path), f"--parallelize {function}", words)
