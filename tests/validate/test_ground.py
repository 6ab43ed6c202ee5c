"""Which save the proofs of saving look at, and how long they hold it: hand-made saves."""

from __future__ import annotations

import pytest
from pytorch_fsdp2_dcp.validate.events import AsyncSaved, Circumstances, Location, Ref
from pytorch_fsdp2_dcp.validate.proofs.asynchronous import _until
from pytorch_fsdp2_dcp.validate.proofs.ground import Ground


def save(step: int, target: str) -> AsyncSaved:
    return AsyncSaved(
        order=step, at=Location("train.py", 1), when=Circumstances(rank=0, step=step), target=target, located=True,
        entries=None, group=None, alone=False, future=Ref(step, "future"),
    )  # fmt: skip


def ground(*steps: int, last: int, one_folder: bool = False) -> Ground:
    return Ground(([],), last, [save(step, "saved" if one_folder else f"saved/{step}") for step in steps])


@pytest.mark.parametrize(
    ("steps", "last", "middle"),
    [((3, 6, 8), 8, 6), ((4,), 9, 4), ((2, 4, 6, 8), 10, 4), ((1, 2, 3), 100, 3)],
    ids=["one before it", "the only one", "the nearest of several", "all early"],
)
def test_a_script_is_ended_at_the_save_nearest_the_middle(steps: tuple[int, ...], last: int, middle: int) -> None:
    assert ground(*steps, last=last).middle == middle


@pytest.mark.parametrize(
    ("found", "number", "until"),
    [
        (ground(3, 6, last=9), 0, 7),
        (ground(3, 4, last=9), 0, 5),
        (ground(3, last=9), 0, 5),
        (ground(3, 6, last=6), 0, 6),
        (ground(3, 6, last=9, one_folder=True), 0, 5),
        (ground(3, 4, last=9, one_folder=True), 0, 4),
    ],
    ids=[
        "beyond the next",
        "close together",
        "none follows",
        "the next is at the end",
        "one folder",
        "one folder, close",
    ],
)
def test_a_save_is_held_beyond_the_next_one_unless_that_goes_to_the_same_folder(
    found: Ground, number: int, until: int
) -> None:
    held = found.saves[number]
    assert isinstance(held, AsyncSaved)
    assert _until(found, held) == until
