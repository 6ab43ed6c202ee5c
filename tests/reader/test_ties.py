"""What the reader knows of weights that are shared, and of what shards several modules together."""

from __future__ import annotations

import pytest
from pytorch_fsdp2_dcp.validate.events import Escaped, Sharded, Tied

from .programs import IMPORTS, MODEL, program

START = IMPORTS + MODEL + "model = Net()\n"


@pytest.mark.parametrize(
    ("text", "ties"),
    [
        ("model.head.weight = model.embed.weight", ["model.head.weight model.embed"]),
        ("setattr(model.head, 'weight', model.embed.weight)", ["model.head.weight model.embed"]),
        ("w = model.head.weight\nmodel.embed.weight = w", ["model.embed.weight model.head"]),
        ("model.one = model.two = nn.Parameter(torch.ones(2))", []),
        ("model.one = nn.Parameter(torch.ones(2))\nmodel.head.own = model.one", ["model.head.own model"]),
        ("model.head.weight = nn.Parameter(torch.ones(2))", []),
        ("model.head.weight.data = model.embed.weight.data", []),
        ("model.all_weights = model.head.parameters()", []),
        ("model.head = model.embed", []),
        ("model.first = model.head.weight", []),
        (
            "for block in model.blocks: block.norm.weight = model.head.weight",
            ["model.blocks[*].norm.weight model.head"],
        ),
        ("for block in model.blocks: model.head.weight = block.weight", []),
        (
            "from transformers import AutoModel\nmodel = AutoModel.from_pretrained('x')\n"
            "model.lm_head.weight = model.wte.weight",
            ["model.lm_head.weight model.wte"],
        ),
        (
            "model.head.weight = model.embed.weight\nmodel.embed.weight = model.head.weight",
            ["model.head.weight model.embed", "model.embed"],
        ),
        (
            "model.head.weight = model.embed.weight\nmodel.restore()\nmodel.head.reset_parameters()",
            ["model.head.weight model.embed", "model"],
        ),
        ("model.restore()", []),
    ],
)
def test_what_is_tied(text: str, ties: list[str]) -> None:
    told = program(text, START).of(Tied)
    assert [f"{t.module.name}.{t.name} {t.to.name}" if t.to else t.module.name for t in told] == ties


def test_a_module_that_another_replaces_is_out_of_sight() -> None:
    trace = program("model.head.weight = model.embed.weight\nmodel.head = nn.Linear(8, 8)\nfully_shard(model)", START)
    (tied,) = trace.of(Tied)
    assert [e.of for e in trace.of(Escaped)] == [tied.module]


def test_modules_of_one_list_are_one_group() -> None:
    head, embed, root = program("fully_shard([model.head, model.embed])\nfully_shard(model)", START).of(Sharded)
    assert (head.beside, embed.beside, root.beside) == ((embed.module,), (head.module,), ())
