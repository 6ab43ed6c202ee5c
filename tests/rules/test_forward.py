"""FS4, how the model is called, over traces written by hand."""

from __future__ import annotations

import pytest
from pytorch_fsdp2_dcp.validate.events import (
    EntryRegistered,
    Escaped,
    Exited,
    ForwardBypassed,
    ForwardEntered,
    Sharded,
    Unsharded,
)

from .traces import BLOCKS, HEAD, MODEL, OTHER, Step, does, found


def test_forward_without_hooks() -> None:
    assert found(does(ForwardBypassed, module=MODEL)) == [("FS403", 1)]
    generate = does(ForwardBypassed, module=MODEL, method="generate")
    assert found(does(EntryRegistered, module=MODEL, method="encode"), generate) == [("FS403", 2)]
    assert found(does(EntryRegistered, module=OTHER, method="generate"), generate) == [("FS403", 2)]


@pytest.mark.parametrize("method", ["generate", None])
def test_a_registered_method_runs_the_hooks(method: str | None) -> None:
    registered = does(EntryRegistered, module=MODEL, method=method)
    assert found(registered, does(ForwardBypassed, module=MODEL, method="generate")) == []


SHARDED = (does(Sharded, module=BLOCKS), does(Sharded, module=MODEL))
INNER = does(ForwardEntered, module=BLOCKS, sharded=True)
OUTER = does(ForwardEntered, module=MODEL, sharded=True)
BORROWED = does(ForwardEntered, module=HEAD, borrows=MODEL)


def test_a_submodule_before_its_root() -> None:
    assert found(*SHARDED, INNER, OUTER, INNER) == [("FS404", 3)]
    assert found(
        *SHARDED, INNER, does(Exited, error="RuntimeError: FSDP requires running forward through the root module first")
    ) == [("FS404", 3)]
    assert found(*SHARDED, BORROWED, OUTER) == [("FS404", 3)]


@pytest.mark.parametrize(
    "steps",
    [
        (*SHARDED, OUTER, INNER, OUTER),
        (*SHARDED, INNER),
        (*SHARDED, INNER, does(Exited, code=0)),
        (INNER, *SHARDED, OUTER),
        (*SHARDED, does(Escaped, of=MODEL), INNER, OUTER),
        (*SHARDED, does(ForwardEntered, module=OTHER), OUTER),
        (*SHARDED, OUTER, BORROWED),
        (*SHARDED, does(Unsharded, module=MODEL), BORROWED),
    ],
)
def test_a_submodule_that_may_be_called(steps: tuple[Step, ...]) -> None:
    assert "FS404" not in [code for code, _ in found(*steps)]


def test_a_method_that_is_registered_gathers_where_it_is_called() -> None:
    registered = does(EntryRegistered, module=MODEL, method="encode")
    assert found(*SHARDED, registered, BORROWED, OUTER) == [("FS404", 4)]
    assert found(*SHARDED, registered, OUTER, BORROWED) == []
    assert found(*SHARDED, registered, BORROWED, OUTER, origin="probe") == []  # which does not see its calls
