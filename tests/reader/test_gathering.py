"""What the reader sees of gathering: what a group takes, what it keeps, and who borrows parameters."""

from __future__ import annotations

import pytest
from pytorch_fsdp2_dcp.validate.events import ForwardEntered, Resharded, Sharded, Unsharded

from .programs import IMPORTS, MODEL, SHARDED, only, program


@pytest.mark.parametrize(
    ("options", "keeps"),
    [
        ("", True),
        (", reshard_after_forward=None", True),
        (", reshard_after_forward=False", True),
        (", reshard_after_forward=True", False),
        (", reshard_after_forward=4", False),
        (", reshard_after_forward=os.environ['RESHARD']", None),
        (", **options", None),
    ],
)
def test_whether_a_root_stays_gathered(options: str, keeps: bool | None) -> None:
    text = f"options = load()\nfully_shard(Net(){options})"
    assert only(program(text, IMPORTS + MODEL), Sharded).keeps is keeps


def test_whether_a_group_takes_parameters_of_its_own() -> None:
    text = """
        model = Net()
        for part in (model.embed, *model.blocks, model.head):
            fully_shard(part)
        fully_shard(model)
        fully_shard(library.build())
    """
    *_, whole, unknown = program(text, IMPORTS + MODEL).of(Sharded)
    assert (whole.manages, unknown.manages) == (False, None)
    assert [s.manages for s in program("", SHARDED).of(Sharded)][-1] is True


def test_whose_parameters_a_submodule_borrows() -> None:
    trace = program("model.head(x); model.blocks[0].mlp(x); model.blocks[0](x); nn.GELU()(x)", SHARDED)
    borrowed = [e.borrows.name if e.borrows is not None else None for e in trace.of(ForwardEntered)]
    assert borrowed == ["model", "model.blocks[*]", None, None]


def test_gathering_by_hand() -> None:
    trace = program("model.unshard()\nmodel.reshard()", SHARDED)
    assert only(trace, Unsharded).module == only(trace, Resharded).module
