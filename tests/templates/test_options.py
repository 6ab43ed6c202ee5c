"""The options of the generator: each value is checked, and what cannot work is refused with the reason."""

from __future__ import annotations

import pytest
from pytorch_fsdp2_dcp.templates.options import OPTIONS, answer, parse_mesh
from pytorch_fsdp2_dcp.validate.errors import UserError


def test_nothing_chosen_gives_the_defaults() -> None:
    assert answer({}) == {"mesh": "dp_shard=-1", "async_mode": "async"}


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_defaults_and_examples_of_an_option_are_valid(option) -> None:
    for value in (option.default, *option.examples):
        assert answer({option.name: value})[option.name] == value


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(UserError, match="no option `precision`"):
        answer({"precision": "bf16"})


@pytest.mark.parametrize("value", ["async_with_pinned_mem", "ASYNC", ""])
def test_an_unknown_async_mode_is_refused_with_those_that_are_known(value: str) -> None:
    with pytest.raises(UserError, match=r"--async-mode .*expected disabled or async"):
        answer({"async_mode": value})


def test_a_mesh_is_read_as_a_whole() -> None:
    assert parse_mesh("dp_replicate=2, dp_shard=-1") == {"dp_replicate": 2, "dp_shard": -1}


@pytest.mark.parametrize(
    ("mesh", "reason"),
    [
        ("", "is not a mesh dim"),
        ("dp_shard", "is not a mesh dim"),
        ("dp_shard=two", "is not a mesh dim"),
        ("dp_shard=0", "size 0"),
        ("dp_shard=-2", "size -2"),
        ("pp=2", "no mesh dim `pp`"),
        ("dp_shard=2,dp_shard=2", "twice"),
        ("tp=2,dp_shard=-1", "order"),
        ("dp_replicate=-1,dp_shard=-1", "-1"),
        ("dp_replicate=2,dp_shard=-1", "one mesh dim"),
        ("dp_shard=-1,tp=2", "one mesh dim"),
        ("tp=2", "one mesh dim"),
    ],
)
def test_a_mesh_that_cannot_work_is_refused_with_the_reason(mesh: str, reason: str) -> None:
    with pytest.raises(UserError, match=f"^--mesh .*{reason}") as caught:
        answer({"mesh": mesh})
    assert "expected" in str(caught.value)
