"""Scripts for models other than the built-in one: what they build is what one process builds, whatever is in it."""

from __future__ import annotations

import importlib
import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from pytorch_fsdp2_dcp.templates.options import answer  # noqa: E402
from pytorch_fsdp2_dcp.templates.render import render  # noqa: E402
from pytorch_fsdp2_dcp.validate import header  # noqa: E402
from pytorch_fsdp2_dcp.validate.errors import UserError  # noqa: E402
from torch.distributed.fsdp import FSDPModule  # noqa: E402

from .inputs import MODEL, write_llama  # noqa: E402
from .loaded import joined, load_script, parse  # noqa: E402
from .training import ANY_MODEL, Training, kill_all, write_script  # noqa: E402

CPU = torch.device("cpu")
BLOCK = "my_model:Block"
Built = Callable[..., tuple[ModuleType, Any, Any]]


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The user's module, beside the script and importable in this process."""
    shutil.copy(Path(__file__).with_name("my_model.py"), tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("my_model", None)
    return importlib.import_module("my_model")


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Built]:
    """Builds the model of a script with these options in a world of one rank: script, arguments and model."""

    def build(arguments: dict[str, str] | None = None, **chosen: str) -> tuple[ModuleType, Any, Any]:
        train = load_script(tmp_path, **chosen)
        args = parse(train, monkeypatch, world=1, small=ANY_MODEL, **(arguments or {}))
        return train, args, train.build_model_meta(args, train.build_mesh(args, CPU), CPU)

    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    with joined():
        yield build
    torch.use_deterministic_algorithms(False)
    torch.utils.deterministic.fill_uninitialized_memory = True


def tensors(model: Any) -> dict[str, Any]:
    """All parameters, whole, and all buffers, by each of their names."""
    parameters = model.named_parameters(remove_duplicate=False)
    whole = {name: p.full_tensor() if hasattr(p, "full_tensor") else p.detach() for name, p in parameters}
    return whole | dict(model.named_buffers(remove_duplicate=False))


def assert_same(model: Any, reference: Any) -> None:
    got, expected = tensors(model), tensors(reference)
    assert got.keys() == expected.keys()
    different = [name for name in expected if not torch.equal(got[name], expected[name])]
    assert not different
    assert {name: got[name].dtype for name in got} == {name: expected[name].dtype for name in got}


def test_an_own_model_is_the_one_that_its_factory_builds(built: Built, own: ModuleType) -> None:
    """Bit for bit: parameters, persistent buffers and others, random or not, complex or transposed."""
    _, args, model = built(model=MODEL, block=BLOCK)
    torch.manual_seed(args.seed)
    assert_same(model, own.build_model())
    assert not model.blocks[0].norm2.gain.requires_grad and model.blocks[0].norm1.gain.requires_grad


@pytest.mark.usefixtures("own")
def test_what_is_shared_stays_shared_and_out_of_blocks_that_do_not_hold_all_of_it(built: Built) -> None:
    _, _, model = built(model=MODEL, block=BLOCK)
    first, second, third = model.blocks
    assert model.head.weight is model.embed.weight
    assert model.shift_in is model.shift_out
    assert first.up.weight is third.up.weight
    assert first.mask is second.mask
    assert [isinstance(block, FSDPModule) for block in model.blocks] == [False, True, False]


def test_blocks_within_blocks_are_sharded_first(built: Built, own: ModuleType) -> None:
    _, args, model = built(model=MODEL, block=f"{BLOCK},my_model:Scale")
    assert all(isinstance(block.norm1, FSDPModule) for block in model.blocks)
    torch.manual_seed(args.seed)
    assert_same(model, own.build_model())


@pytest.mark.usefixtures("own")
def test_torch_is_as_before_once_the_model_is_built(built: Built) -> None:
    register, data = torch.nn.Module.register_parameter, torch.nn.Parameter.data
    built(model=MODEL, block=BLOCK)
    assert torch.nn.Module.register_parameter is register
    assert torch.nn.Parameter.data is data
    assert torch.utils.deterministic.fill_uninitialized_memory is False


@pytest.mark.usefixtures("own")
def test_a_parameter_in_half_precision_becomes_a_full_one(built: Built, tmp_path: Path) -> None:
    (tmp_path / "half.py").write_text("import my_model\n\n\ndef make():\n    return my_model.Model().half()\n")
    _, _, model = built(model="half:make", block=BLOCK)
    assert {p.dtype for p in model.parameters()} == {torch.float32}


@pytest.mark.usefixtures("own")
def test_a_parameter_that_the_factory_forgets_is_found(built: Built) -> None:
    with pytest.raises(AssertionError, match="forgotten was left uninitialised"):
        built(model="my_model:Forgetful", block=BLOCK)


@pytest.mark.usefixtures("own")
def test_a_model_without_such_blocks_is_refused(built: Built, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        built(model=MODEL, block="my_model:Model")
    assert "no module of my_model:Model" in capsys.readouterr().err


@pytest.mark.usefixtures("own")
def test_an_unused_parameter_gets_the_state_that_a_resume_asks_for(built: Built) -> None:
    train, args, model = built(model=MODEL, block=BLOCK)
    state = train.TrainState(model, *train.build_optimizer(model, args))
    tokens = train.draw_batch(train.load_data(args), args, 0, train.build_mesh(args, CPU))
    train.train_step(state, tokens.split(args.micro_batch))
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert {f"model.{name}" for name in trained} == {
        f"model.{name}" for name, parameter in model.named_parameters() if parameter in state.optimizer.state
    }


@pytest.mark.parametrize(
    ("chosen", "words"),
    [
        ({"model": "my_model"}, "expected package.module:name"),
        ({"model": "my_model:"}, "expected package.module:name"),
        ({"model": "my-model:make"}, "cannot be imported"),
        ({"model": "my_model:make();import os", "block": BLOCK}, "cannot be imported"),
        ({"model": "my_model:class", "block": BLOCK}, "cannot be imported"),
        ({"model": "hf:"}, "a folder, or a config file"),
        ({"model": "hf:a\nb"}, "a folder, or a config file"),
        ({"model": MODEL}, "needs --block"),
        ({"model": MODEL, "block": "my_model:Block:x"}, "cannot be imported"),
        ({"model": MODEL, "block": "my_model:Block,my_model:Block"}, "a class twice"),
        ({"block": BLOCK}, "goes with a model of your own"),
        ({"model": "hf:llama", "block": BLOCK}, "goes with a model of your own"),
        ({"model": MODEL, "block": BLOCK, "mesh": "dp_shard=2,tp=2"}, "no plan for tp=2"),
        ({"model": "hf:llama", "mesh": "dp_shard=2,tp=2"}, "no plan for tp=2"),
    ],
)
def test_a_model_that_cannot_work_is_refused_with_the_reason(chosen: dict[str, str], words: str) -> None:
    with pytest.raises(UserError) as caught:
        answer(chosen)
    assert words in str(caught.value)


@pytest.mark.parametrize("path", ["/data/my models/llama", 'a"b', "it's", "C:\\models", "größe"])
def test_a_path_is_in_the_script_as_it_was_given(path: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    train = load_script(tmp_path, model=f"hf:{path}")
    monkeypatch.setattr(train.Path, "exists", lambda _: True)
    assert parse(train, monkeypatch, small=ANY_MODEL).model == Path(path)


def test_scripts_for_other_models_have_no_flags_of_the_built_in_one() -> None:
    for chosen in ({"model": MODEL, "block": BLOCK}, {"model": "hf:llama"}):
        text = render(answer(chosen))
        carried = header.parse(text)
        assert carried is not None and "--layers" not in carried.proof_args
        assert not any(f'"{flag}"' in text for flag in ("layers", "heads", "width", "dropout"))


@pytest.mark.usefixtures("own")
def test_classes_of_one_name_in_two_modules_are_both_blocks(built: Built, tmp_path: Path) -> None:
    (tmp_path / "other.py").write_text("from my_model import Scale as Block\n")
    _, _, model = built(model=MODEL, block=f"{BLOCK},other:Block")
    assert isinstance(model.blocks[1], FSDPModule) and isinstance(model.blocks[0].norm1, FSDPModule)


@pytest.fixture
def transformers() -> Any:
    return pytest.importorskip("transformers")


def test_a_llama_has_the_weights_of_its_files_and_computes_what_transformers_computes(
    built: Built, transformers: Any, tmp_path: Path
) -> None:
    """In fp32, though the files and the config say bf16."""
    write_llama(tmp_path / "llama")
    _, args, model = built(model=f"hf:{tmp_path / 'llama'}")
    reference = transformers.AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32)
    assert_same(model, reference)
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert model.config.use_cache is False and model.config._attn_implementation == "sdpa"
    assert all(isinstance(layer, FSDPModule) for layer in model.model.layers)
    tokens = torch.arange(64).reshape(2, 32)
    with torch.no_grad():
        assert torch.equal(model.eval()(tokens).logits, reference.eval()(tokens).logits)


@pytest.mark.parametrize("part", ["with its head", "below its head"])
def test_a_gpt2_whose_head_is_its_embedding_is_read_from_either_kind_of_file(
    built: Built, transformers: Any, tmp_path: Path, part: str
) -> None:
    config = transformers.GPT2Config(vocab_size=256, n_embd=32, n_layer=2, n_head=4, n_positions=64)
    whole = transformers.GPT2LMHeadModel(config)
    (whole if part == "with its head" else whole.transformer).save_pretrained(tmp_path / "gpt2")
    _, _, model = built(model=f"hf:{tmp_path / 'gpt2'}")
    assert_same(model, whole)
    assert model.lm_head.weight is model.transformer.wte.weight


def test_a_config_alone_gives_the_random_weights_of_one_process(
    built: Built, transformers: Any, tmp_path: Path
) -> None:
    write_llama(tmp_path / "llama", tie_word_embeddings=True)
    for weights in (tmp_path / "llama").glob("*.safetensors*"):
        weights.unlink()
    for path in (tmp_path / "llama", tmp_path / "llama" / "config.json"):
        _, args, model = built(model=f"hf:{path}")
        torch.manual_seed(args.seed)
        config = transformers.AutoConfig.from_pretrained(path)
        assert_same(model, transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32))
        assert model.lm_head.weight is model.model.embed_tokens.weight


@pytest.mark.parametrize(
    ("config", "arguments", "words"),
    [
        ({"vocab_size": 200}, {}, "--model has 200 tokens; expected one for each of 256 bytes or more"),
        ({"max_position_embeddings": 16}, {}, "--model has 16 positions; expected --seq-len 16 or less"),
        ({}, {"model": "no/such"}, "there is no no/such"),
        ({"num_hidden_layers": 4}, {}, "no model.layers.3"),
    ],
)
@pytest.mark.usefixtures("transformers")
def test_a_model_that_does_not_fit_is_refused_in_one_line(
    built: Built,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    config: dict[str, int],
    arguments: dict[str, str],
    words: str,
) -> None:
    folder = tmp_path / "llama"
    write_llama(folder)
    described = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(described | config))
    capsys.readouterr()
    with pytest.raises(SystemExit):
        built(model=f"hf:{folder}", arguments=arguments)
    assert words in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.usefixtures("transformers")
def test_weights_in_files_that_are_not_read_do_not_become_random_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "llama").mkdir()
    (tmp_path / "llama" / "pytorch_model.bin").touch()
    train = load_script(tmp_path, model=f"hf:{tmp_path / 'llama'}")
    with pytest.raises(SystemExit):
        parse(train, monkeypatch, small=ANY_MODEL)
    assert "expected --model weights as .safetensors" in capsys.readouterr().err


COMPARE = """
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import torch
import torch.distributed as dist
import train

args = train.parse_args()
device = train.init_distributed()
model = train.build_model_meta(args, train.build_mesh(args, device), device)
whole = {name: p.full_tensor() for name, p in model.named_parameters(remove_duplicate=False)}
whole |= dict(model.named_buffers(remove_duplicate=False))
torch.manual_seed(args.seed)
REFERENCE
expected = dict(reference.named_parameters(remove_duplicate=False))
expected |= dict(reference.named_buffers(remove_duplicate=False))
assert whole.keys() == expected.keys()
assert not [name for name in expected if not torch.equal(whole[name], expected[name])]
dist.barrier()
dist.destroy_process_group()
"""
OWN_REFERENCE = "import my_model; reference = my_model.build_model()"
HF_REFERENCE = (
    "from transformers import AutoModelForCausalLM as A; reference = A.from_pretrained(args.model, dtype=torch.float32)"
)


def compare(folder: Path, ranks: int, reference: str, **chosen: str) -> None:
    """Let every rank of a script hold all that it built against the reference."""
    write_script(folder, **chosen)
    script = folder / "compare.py"
    script.write_text(COMPARE.replace("REFERENCE", reference))
    process = Training(script, folder / "run", ranks=ranks, small=ANY_MODEL).run()
    assert process.returncode == 0, process.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "chosen"),
    [
        (2, {"cpu_offload": "on"}),
        (4, {"mesh": "dp_replicate=2,dp_shard=-1", "activation_checkpointing": "full", "prefetch": "2"}),
    ],
    ids=["two ranks, offloaded", "two by two"],
)
@pytest.mark.usefixtures("own")
def test_every_rank_has_its_part_of_what_one_process_builds(tmp_path: Path, ranks: int, chosen: dict[str, str]) -> None:
    compare(tmp_path, ranks, OWN_REFERENCE, model=MODEL, block=BLOCK, **chosen)


@pytest.mark.slow
@pytest.mark.usefixtures("transformers")
def test_every_rank_has_its_part_of_a_models_files(tmp_path: Path) -> None:
    write_llama(tmp_path / "llama")
    compare(tmp_path, 2, HF_REFERENCE, model=f"hf:{tmp_path / 'llama'}")


@pytest.mark.slow
@pytest.mark.usefixtures("own")
def test_an_own_model_started_from_another_folder_goes_on_after_a_kill_on_half_the_ranks(tmp_path: Path) -> None:
    script = write_script(tmp_path, model="my_model:build_without_dropout", block=BLOCK)
    expected = Training(script, tmp_path / "straight", small=ANY_MODEL).finish()
    assert expected[-1]["loss"] < expected[0]["loss"]
    training = Training(script, tmp_path / "moved", small=ANY_MODEL)
    with training.started() as process:
        training.wait_for_step(9, process)
        kill_all(process)
    training.ranks = 1
    for record, other in zip(training.finish(), expected, strict=True):
        assert record == pytest.approx(other, rel=1e-4)
