"""The options of the generator: each value is checked, and what cannot work is refused with the reason."""

from __future__ import annotations

import pytest
from pytorch_fsdp2_dcp.templates.mesh import example_ranks, parse_mesh
from pytorch_fsdp2_dcp.templates.options import OPTIONS, answer
from pytorch_fsdp2_dcp.validate.errors import UserError


def test_nothing_chosen_gives_the_defaults() -> None:
    assert answer({}) == {option.name: option.default for option in OPTIONS}


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_defaults_and_examples_of_an_option_are_valid(option) -> None:
    for value in (option.default, *option.examples):
        option.refuse(value)


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(UserError, match="no option `colour`"):
        answer({"colour": "blue"})


@pytest.mark.parametrize("value", ["pinned", "ASYNC", ""])
def test_an_unknown_async_mode_is_refused_with_those_that_are_known(value: str) -> None:
    with pytest.raises(UserError, match=r"--async-mode .*expected disabled or async or async_with_pinned_mem"):
        answer({"async_mode": value})


def test_a_mesh_is_read_as_a_whole() -> None:
    assert parse_mesh("dp_replicate=2, dp_shard=-1") == {"dp_replicate": 2, "dp_shard": -1}


@pytest.mark.parametrize(
    ("mesh", "reason"),
    [
        ("", "is not a mesh dim"),
        ("dp_shard", "is not a mesh dim"),
        ("dp_shard=two", "is not a mesh dim"),
        ("dp_shard=\u0662", "is not a mesh dim"),
        ("dp_shard=" + "9" * 5000, "is not a mesh dim"),
        ("dp_shard=0", "size 0"),
        ("dp_shard=-2", "size -2"),
        ("pp=2", "no mesh dim `pp`"),
        ("dp_shard=2,dp_shard=2", "twice"),
        ("tp=2,dp_shard=-1", "order"),
        ("dp_replicate=-1,dp_shard=-1", "-1"),
        ("dp_replicate=2", "no dp_shard"),
        ("tp=2", "no dp_shard"),
        ("dp_replicate=2,tp=2", "no dp_shard"),
    ],
)
def test_a_mesh_that_cannot_work_is_refused_with_the_reason(mesh: str, reason: str) -> None:
    with pytest.raises(UserError, match=f"^--mesh .*{reason}") as caught:
        answer({"mesh": mesh})
    assert "expected" in str(caught.value)


@pytest.mark.parametrize(
    ("mesh", "ranks"), [("dp_shard=-1", 2), ("dp_shard=3", 3), ("dp_replicate=2,dp_shard=-1,tp=4", 16)]
)
def test_a_mesh_says_how_many_ranks_an_example_of_it_takes(mesh: str, ranks: int) -> None:
    assert example_ranks(parse_mesh(mesh)) == ranks


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("activation_checkpointing", "some", "expected none or full or a number from 1"),
        ("activation_checkpointing", "0", "a number from 1"),
        ("activation_checkpointing", "1.5", "a number from 1"),
        ("activation_checkpointing", "007", "a number from 1"),
        ("activation_checkpointing", "9" * 5000, "a number from 1"),
        ("activation_checkpointing", "²", "a number from 1"),
        ("reshard_after_forward", "-1", "expected default or always or never or a number from 1"),
        ("prefetch", "all", "expected default or a number from 1"),
        ("compile", "yes", "expected off or on"),
        ("precision", "fp16", "expected fp32 or bf16"),
        ("optimizer", "lion", "expected adamw or sgd"),
        ("optimizer", "adafactor", "does not run on sharded parameters"),
        ("schedule", "step", "expected cosine or linear or constant or wsd"),
    ],
)
def test_a_value_that_cannot_be_used_is_refused_with_those_that_can(name: str, value: str, reason: str) -> None:
    with pytest.raises(UserError, match=f"^--{name.replace('_', '-')} {value}: ") as caught:
        answer({name: value})
    assert reason in str(caught.value)


def test_values_that_cannot_work_together_are_refused_with_the_reason() -> None:
    assert answer({"mesh": "dp_shard=4", "reshard_after_forward": "2"})
    assert answer({"mesh": "dp_shard=-1", "reshard_after_forward": "3"})
    with pytest.raises(UserError, match=r"--reshard-after-forward 3 does not divide dp_shard=4; expected a divisor"):
        answer({"mesh": "dp_shard=4", "reshard_after_forward": "3"})
