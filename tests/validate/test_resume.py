"""How the proof `resume` compares what the probe measured: hand-made figures, one difference each."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from pytorch_fsdp2_dcp.validate.events import Circumstances, Location, Saved
from pytorch_fsdp2_dcp.validate.probe.figures import StepFigures
from pytorch_fsdp2_dcp.validate.proofs.resume import (
    carried,
    carried_difference,
    first_difference,
    max_loss_difference,
    restored_difference,
)
from pytorch_fsdp2_dcp.validate.trace import Trace


def step(number: int, **changes: Any) -> StepFigures:
    """Figures of step `number` of the straight run."""
    figures = StepFigures(
        step=number,
        losses=[5.0 - number],
        grad_norm_sq=4.0,
        lrs=[0.1],
        params={"weight": number},
        optimizer={"weight.exp_avg": number},
        buffers={"running_mean": number},
        rng=number,
    )
    return dataclasses.replace(figures, **changes)


STRAIGHT = ([step(n) for n in range(7)],)
RESUMED = ([step(3, step=0), step(4, step=1), step(5, step=2), step(6, step=3)],)  # from the checkpoint of step 3


def test_a_resumed_run_that_continues_the_straight_one_does_not_differ() -> None:
    assert first_difference(STRAIGHT, RESUMED, offset=3) is None
    assert restored_difference(STRAIGHT, RESUMED, 3) is None
    assert max_loss_difference(STRAIGHT, RESUMED, 3) == 0.0


@pytest.mark.parametrize(
    ("changes", "quantity"),
    [
        ({"losses": [0.5]}, "loss"),
        ({"grad_norm_sq": 9.0}, "gradient norm"),
        ({"lrs": [0.2]}, "learning rate"),
        ({"params": {"weight": 99}}, "parameters"),
        ({"optimizer": {"weight.exp_avg": 99}}, "optimizer state"),
        ({"optimizer": {}}, "optimizer state"),
        ({"buffers": {"running_mean": 99}}, "buffers"),
    ],
)
def test_a_difference_is_named_with_its_step_and_rank(changes: dict[str, Any], quantity: str) -> None:
    other = [*RESUMED[0][:2], dataclasses.replace(RESUMED[0][2], **changes), RESUMED[0][3]]
    difference = first_difference((STRAIGHT[0], STRAIGHT[0]), (RESUMED[0], other), offset=3)
    assert difference is not None
    assert (difference.step, difference.rank, difference.quantity) == (5, 1, quantity)


def test_the_first_of_several_differences_is_told() -> None:
    other = [f if f.step == 0 else dataclasses.replace(f, losses=[f.losses[0] + f.step]) for f in RESUMED[0]]
    difference = first_difference(STRAIGHT, (other,), offset=3)
    assert difference is not None
    assert difference.step == 4
    assert max_loss_difference(STRAIGHT, (other,), 3) == 3.0


def test_optimizer_state_that_was_not_restored_is_named() -> None:
    lost = [dataclasses.replace(RESUMED[0][0], optimizer={}), *RESUMED[0][1:]]
    assert restored_difference(STRAIGHT, (lost,), 3) == (
        "1 of 1 tensor of optimizer state not restored on rank 0 (`weight.exp_avg`)"
    )


def test_parameters_that_are_not_those_saved_are_named() -> None:
    other = [dataclasses.replace(RESUMED[0][0], params={"weight": 99}), *RESUMED[0][1:]]
    assert (
        restored_difference(STRAIGHT, (other,), 3)
        == "1 of 1 tensor of parameters differ from those saved on rank 0 (`weight`)"
    )


def test_buffers_that_the_first_forward_changes_count_as_restored() -> None:
    other = [dataclasses.replace(RESUMED[0][0], buffers={"running_mean": 99}), *RESUMED[0][1:]]
    assert restored_difference(STRAIGHT, (other,), 3) is None


# A straight run of six steps that saves after steps 2 and 4: an average that moves with each, a copy that is made for
# each save, and weights that stay as they are.
BESIDE = ([step(n, beside={"average": n, "copied": max(0, n - 1) // 2 * 2, "teacher": 7}) for n in range(7)],)
SAVES = tuple(
    Saved(order=n, at=Location("train.py", n), when=Circumstances(rank=0, step=n), target=None) for n in (2, 4)
)


def test_what_is_changed_by_training_is_carried_and_a_copy_for_a_save_is_not() -> None:
    assert carried(BESIDE, [Trace(origin="probe", events=SAVES)]) == [{"average"}]
    assert carried(BESIDE, [Trace(origin="probe", events=())]) == [{"average", "copied"}]


@pytest.mark.parametrize(
    ("beside", "told"),
    [
        ([{"average": 3}, {"average": 4}, {"average": 5}], None),
        ([{}, {"average": 4}, {"average": 5}], None),  # made at its first use
        ([{"average": 0}, {"average": 1}, {"average": 2}], "is not in step 4 what it was"),
        ([{"average": 3}, {"average": 3}, {"average": 5}], "is not in step 5 what it was"),
        ([{}, {}, {}], "is gone"),
    ],
)
def test_what_is_carried_is_compared_step_by_step(beside: list[dict[str, int]], told: str | None) -> None:
    straight = ([step(n, beside={"average": n - 1}) for n in range(7)],)  # it moves after the optimizer's step
    resumed = ([step(3, step=0), *(step(n + 3, step=n, beside=b) for n, b in enumerate(beside, 1))],)
    found = carried_difference(straight, resumed, 3, [{"average"}])
    assert found == (
        None
        if told is None
        else f"`average`, weights beside the model that change as it trains, {told} on rank 0: save it too"
    )
