"""What is in the dictionaries that a program saves and loads."""

from __future__ import annotations

import pytest
from pytorch_fsdp2_dcp.validate.events import (
    CollectiveCalled,
    Entry,
    Form,
    Kind,
    Loaded,
    Saved,
    StateApplied,
    StateTaken,
    TorchLoaded,
    TorchSaved,
    Via,
)

from .programs import SHARDED, only, program, traces

PLAIN = """
import dataclasses, json, math, library


@dataclasses.dataclass
class Settings:
    steps: int = 3
    lr: float = 0.1


@dataclasses.dataclass
class Progress:
    step: int = 0
"""


def saved(value: str, before: str = "") -> dict[str, Entry]:
    """The entries by key when `value` is saved."""
    entries = only(program(f"{before}\ndcp.save({value}, checkpoint_id='c')\n", SHARDED), Saved).entries
    assert entries is not None
    return {entry.key: entry for entry in entries}


@pytest.mark.parametrize(
    "value, kind, form, via",
    [
        ("model", Kind.MODEL, Form.SHARDED, Via.OBJECT),
        ("optimizer", Kind.OPTIMIZER, Form.SHARDED, Via.OBJECT),
        ("model.state_dict()", Kind.MODEL, Form.SHARDED, Via.METHOD),
        ("optimizer.state_dict()", Kind.OPTIMIZER, Form.SHARDED, Via.METHOD),
        ("get_model_state_dict(model)", Kind.MODEL, Form.SHARDED, Via.HELPER),
        ("get_state_dict(model, optimizer)[1]", Kind.OPTIMIZER, Form.SHARDED, Via.HELPER),
        ("get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))", Kind.MODEL, Form.FULL, Via.HELPER),  # noqa: E501
        ("{k: v.full_tensor() for k, v in model.state_dict().items()}", Kind.MODEL, Form.FULL, Via.METHOD),
        ("{k: v.to_local() for k, v in model.state_dict().items()}", Kind.MODEL, Form.LOCAL, Via.METHOD),
        ("{n: p._local_tensor for n, p in model.named_parameters()}", Kind.MODEL, Form.LOCAL, Via.VALUE),
        ("nn.Linear(2, 2).state_dict()", Kind.MODEL, Form.PLAIN, Via.METHOD),
        ("torch.optim.lr_scheduler.StepLR(optimizer, 1)", Kind.SCHEDULER, Form.PLAIN, Via.OBJECT),
        ("torch.get_rng_state()", Kind.RNG, Form.PLAIN, Via.VALUE),
        ("torch.Generator().manual_seed(3).get_state()", Kind.RNG, Form.PLAIN, Via.VALUE),
        ("3", Kind.VALUE, Form.PLAIN, Via.VALUE),
        ("math.inf", Kind.VALUE, Form.PLAIN, Via.VALUE),
        ("torch.empty(0)", Kind.VALUE, Form.PLAIN, Via.VALUE),
        ("json.dumps(dataclasses.asdict(Settings()))", Kind.VALUE, Form.PLAIN, Via.VALUE),
        ("json.dumps(dataclasses.asdict(Progress()))", Kind.UNKNOWN, Form.UNKNOWN, Via.VALUE),
        ("json.dumps(library.state())", Kind.UNKNOWN, Form.UNKNOWN, Via.VALUE),
    ],
)  # fmt: skip
def test_an_entry_tells_what_it_is_the_state_of(value: str, kind: Kind, form: Form, via: Via) -> None:
    entry = saved(f"{{'x': {value}}}", PLAIN)["x"]
    assert (entry.kind, entry.form, entry.via) == (kind, form, via)


def test_options_are_followed_through_variables_and_branches() -> None:
    before = "options = StateDictOptions()\noptions.full_state_dict = True\nd = {'m': get_model_state_dict(model, options=options)}"  # noqa: E501
    assert saved("d", before)["m"].form is Form.FULL
    unknown = "options = StateDictOptions(full_state_dict=os.environ.get('F') == '1')"
    assert saved("{'m': get_model_state_dict(model, options=options)}", unknown)["m"].form is Form.UNKNOWN


def test_dictionaries_are_followed_through_updates_and_calls() -> None:
    before = """
def build(**more):
    d = {"a": 1}
    d["b"] = {"c": model.state_dict()}
    d.update(more)
    return d
"""
    assert list(saved("build(x=2)", before)) == ["a", "b.c", "x"]
    assert list(saved("model.state_dict()")) == [""]


def test_a_copy_of_one_of_several_dictionaries_has_what_is_in_them() -> None:
    before = "best = {'loss': 1.0}\nif os.environ.get('A'):\n    best = {'loss': 2.0, 'step': 1}"
    assert list(saved("{'best': dict(best)}", before)) == ["best.loss", "best.step"]
    before += "\nif os.environ.get('B'):\n    best = os.stat('c')"
    assert list(saved("{'best': dict(best)}", before)) == ["best.*"]


def test_the_state_of_a_generator_of_its_own_may_be_the_same_on_all_ranks() -> None:
    assert saved("{'x': torch.Generator().get_state()}")["x"].per_rank is None
    assert saved("{'x': torch.get_rng_state()}")["x"].per_rank is True


@pytest.mark.parametrize(
    "key, value, per_rank",
    [
        ("'rng'", "torch.get_rng_state()", True),
        ("'rng'", "torch.cuda.get_rng_state()", True),
        ("f'rng_{dist.get_rank()}'", "torch.get_rng_state()", False),
        ("'nested'", "{f'rank{dist.get_rank()}': torch.get_rng_state()}", False),
        ("'loader'", "StatefulDataLoader([1])", True),
        ("'loader'", "StatefulDataLoader([1]).state_dict()", True),
        ("f'loader_{os.environ[\"RANK\"]}'", "StatefulDataLoader([1])", False),
        ("'rank'", "dist.get_rank()", True),
        ("'step'", "7", False),
        ("'step'", "counter()", None),
        ("'model'", "model.state_dict()", False),
    ],
)
def test_per_rank_values_under_one_key(key: str, value: str, per_rank: bool | None) -> None:
    before = "from torchdata.stateful_dataloader import StatefulDataLoader\nfrom lib import counter\n"
    (entry,) = saved(f"{{{key}: {value}}}", before).values()
    assert entry.per_rank is per_rank


def test_values_gathered_from_all_ranks_are_not_per_rank() -> None:
    before = "states = [None] * 2\ndist.all_gather_object(states, torch.get_rng_state())\n"
    assert all(entry.per_rank is not True for entry in saved("{'rng': states}", before).values())


STATEFUL = """
class Train:
    def __init__(self, model, optimizer):
        self.model, self.optimizer, self.step = model, optimizer, 0
    def state_dict(self):
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "step": self.step}
    def load_state_dict(self, state):
        self.model.load_state_dict(state["model"])
        self.step = state["step"]
train = Train(model, optimizer)
"""


def test_a_stateful_object_is_asked_for_its_state() -> None:
    entries = saved("{'train': train}", STATEFUL)
    assert {k: (e.kind, e.via) for k, e in entries.items()} == {
        "train.model": (Kind.MODEL, Via.METHOD),
        "train.optimizer": (Kind.OPTIMIZER, Via.METHOD),
        "train.step": (Kind.VALUE, Via.VALUE),
    }


def test_a_load_gives_a_stateful_object_its_state_back() -> None:
    trace = program(STATEFUL + "dcp.load({'train': train}, checkpoint_id='c')\n", SHARDED)
    loaded, applied = only(trace, Loaded), only(trace, StateApplied)
    assert [r.name for r in applied.to] == ["model"] and applied.order > loaded.order
    assert applied.state == next(trace.of(StateTaken)).state


def test_state_given_back_through_the_helpers() -> None:
    text = """
    m, o = get_state_dict(model, optimizer)
    state = {"m": m, "o": o}
    dcp.load(state, checkpoint_id="c")
    set_state_dict(model, optimizer, model_state_dict=state["m"], optim_state_dict=state["o"])
    """
    trace = program(text, SHARDED)
    assert [[r.name for r in e.to] for e in trace.of(StateApplied)] == [["model"], ["optimizer"]]
    assert all(e.aliased for e in only(trace, Loaded).entries or ())


def test_torch_save_of_shards_is_told_from_a_gathered_state() -> None:
    text = "torch.save(model.state_dict(), 'a')\ntorch.save({'m': get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))}, 'b')\n"  # noqa: E501
    shards, full = program(text, SHARDED).of(TorchSaved)
    assert [e.form for e in shards.entries or ()] == [Form.SHARDED] and shards.target == "a"
    assert [e.form for e in full.entries or ()] == [Form.FULL]


def test_the_hyperparameters_of_an_optimizer_are_no_shards() -> None:
    text = "state = optimizer.state_dict()\ntorch.save(state['param_groups'], 'g')\ntorch.save(state['state'], 's')\n"
    groups, moments = program(text, SHARDED).of(TorchSaved)
    assert not any(e.form is Form.SHARDED for e in groups.entries or ())
    assert any(e.form is Form.SHARDED for e in moments.entries or ())


def test_full_tensor_is_a_collective() -> None:
    trace = program("for p in model.parameters():\n    p.full_tensor()\n", SHARDED)
    assert {e.op for e in trace.of(CollectiveCalled)} == {"full_tensor"}


def test_nothing_is_claimed_of_arguments_that_are_unknown() -> None:
    trace = traces(
        "def save(model, optimizer, path):\n    dcp.save({'m': model, 'o': optimizer.state_dict()}, checkpoint_id=path)\n"  # noqa: E501
    )[-1]
    assert not trace.ended
    assert [e.kind for e in only(trace, Saved).entries or ()] == [Kind.UNKNOWN, Kind.UNKNOWN]
    assert only(traces("def save(state):\n    dcp.save(state, checkpoint_id='c')\n")[-1], Saved).entries is None


def test_annotated_arguments_are_what_they_say() -> None:
    trace = traces(
        "def save(model: nn.Module, opt: torch.optim.Optimizer):\n    dcp.save({'m': model, 'o': opt}, checkpoint_id='c')\n"  # noqa: E501
    )[-1]
    assert [(e.kind, e.form) for e in only(trace, Saved).entries or ()] == [
        (Kind.MODEL, Form.UNKNOWN),
        (Kind.OPTIMIZER, Form.UNKNOWN),
    ]


def test_a_value_that_another_branch_gathers_is_not_said_to_be_of_one_rank() -> None:
    text = """
    def gathered(value):
        if dist.get_world_size() == 1:
            return [value]
        every = [None] * dist.get_world_size()
        dist.all_gather_object(every, value)
        return every

    dcp.save({"rng": gathered(torch.get_rng_state())}, checkpoint_id="c")
    dcp.save({"rng": torch.get_rng_state() if os.environ.get("SEED") else None}, checkpoint_id="d")
    """
    several, one = program(text).of(Saved)
    assert not any(e.per_rank for e in several.entries or ())
    assert [e.per_rank for e in one.entries or ()] == [True]


def test_a_program_that_writes_such_files_may_load_its_own() -> None:
    loads = "torch.load(os.environ['FILE'], weights_only=False)\n"
    assert only(program(loads, SHARDED), TorchLoaded).foreign
    for saves in ("torch.save(1, 'f')", "def later(trainer):\n    trainer.save('f')"):
        assert only(program(f"{loads}{saves}\n", SHARDED), TorchLoaded).foreign is None
    assert only(program(loads + "dcp.save({'m': model}, checkpoint_id='c')\n", SHARDED), TorchLoaded).foreign
    alone = traces(f"def load():\n    return {loads}", SHARDED)[-1]
    assert only(alone, TorchLoaded).foreign is None


WRAP = "from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper\n"
EACH = WRAP + "for i, block in enumerate(model.blocks):\n    model.blocks[i] = {}\n"


@pytest.mark.parametrize(
    "value, before, prefix",
    [
        ("model.state_dict()", "", None),
        ("model.state_dict()", "model = torch.compile(model)", "_orig_mod."),
        ("model", "model = torch.compile(model)", "_orig_mod."),
        ("get_model_state_dict(model)", "model = torch.compile(model)", None),
        ("model.state_dict()", "fast = torch.compile(model)", None),
        ("fast.eval().state_dict()", "fast = torch.compile(model)", "_orig_mod."),
        ("model.state_dict()", "if os.environ.get('C'):\n    model = torch.compile(model)", "_orig_mod."),
        ("model.state_dict()", "model = torch.compile(model) if os.environ.get('C') else model", "_orig_mod."),
        ("model.state_dict()", EACH.format("torch.compile(block)"), "_orig_mod."),
        ("{k: v.full_tensor() for k, v in model.state_dict().items()}", "model = torch.compile(model)", "_orig_mod."),
        ("{k[10:]: v.full_tensor() for k, v in model.state_dict().items()}", "model = torch.compile(model)", None),
        ("{k: v.full_tensor() for k, v in model.state_dict().items()}", "", None),
        ("model.head.state_dict()", EACH.format("torch.compile(block)"), None),
        ("model.state_dict()", EACH.format("checkpoint_wrapper(block)"), None),
        ("model", EACH.format("torch.compile(checkpoint_wrapper(block))"), "_orig_mod."),
        ("get_model_state_dict(model)", EACH.format("torch.compile(checkpoint_wrapper(block))"), None),
        ("get_model_state_dict(model)", EACH.format("checkpoint_wrapper(torch.compile(block))"), "_orig_mod."),
        ("model.state_dict()", "model = torch.compile(model)\nPREFIX = '_orig_mod.'", None),  # it may take it out
    ],
)
def test_what_compile_returns_has_a_name_of_its_own_in_the_keys(value: str, before: str, prefix: str | None) -> None:
    assert saved(f"{{'x': {value}}}", before)["x"].prefix == prefix
