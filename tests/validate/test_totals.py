"""How runs on different numbers of ranks are compared: hand-made steps, one difference each."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from pytorch_fsdp2_dcp.validate.header import Header
from pytorch_fsdp2_dcp.validate.launch.job import Job, Run
from pytorch_fsdp2_dcp.validate.probe.figures import DRAWS, StepFigures
from pytorch_fsdp2_dcp.validate.proofs.bench import Bench, Subject
from pytorch_fsdp2_dcp.validate.proofs.totals import Total, compare, misreported, totals


def rank(step: int, losses: list[float], share: float | None, samples: list[int]) -> StepFigures:
    return StepFigures(
        step=step, losses=losses, grad_norm_sq=0.0, lrs=[0.1], params={}, optimizer={}, buffers={}, rng=0,
        grad_share=share, samples=samples,
    )  # fmt: skip


def test_the_ranks_of_a_step_are_put_together() -> None:
    found = totals(([rank(1, [1.0, 2.0], 5.0, [1, 2])], [rank(1, [3.0, 4.0], 4.0, [3])]))
    assert found == {
        1: Total(
            step=1, mean=5.0, sum=10.0, grad_norm=3.0, lrs=(0.1,), samples=frozenset({1, 2, 3}), apart=None,
            precision="float32",
        )
    }  # fmt: skip


def test_a_gradient_norm_that_one_rank_cannot_tell_is_not_told() -> None:
    assert totals(([rank(1, [1.0], None, [])], [rank(1, [1.0], 4.0, [])]))[1].grad_norm is None


def step(number: int, **changes: Any) -> Total:
    total = Total(
        step=number, mean=5.0 - number, sum=10.0 - 2 * number, grad_norm=2.0, lrs=(0.1,),
        samples=frozenset({10 * number, 10 * number + 1}), apart=None, precision="float32",
    )  # fmt: skip
    return dataclasses.replace(total, **changes)


STRAIGHT = {n: step(n) for n in range(1, 5)}


def after(**changes: Any) -> dict[int, Total]:
    """What follows the checkpoint of step 2, changed in the second step."""
    return {1: step(3, step=1), 2: step(4, step=2, **changes)}


def test_rounding_is_no_difference() -> None:
    found = compare(STRAIGHT, after(mean=1.00001, sum=2.00002, grad_norm=2.0002), offset=2)
    assert (found.steps, found.apart, found.excuse) == (2, None, None)
    assert found.loss == pytest.approx(1e-5, rel=1e-3)
    assert found.grad_norm == pytest.approx(1e-4, rel=1e-3)


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"step": 2, "loss": 3.0, "grad_norm": 2.0}, None),
        ({"step": 2, "loss": 3.0001, "grad_norm": 2.001}, None),
        ({"step": 9, "loss": 0.0, "grad_norm": 0.0}, None),  # not a step of the run
        ({"step": 2, "loss": 1.5, "grad_norm": 2.0}, "its log has 1.5 as `loss` of step 2, and its ranks computed 3"),
        (
            {"step": 2, "loss": 3.0, "grad_norm": 1.0},
            "its log has 1 as `grad_norm` of step 2, and its ranks computed 2",
        ),
    ],
)
def test_a_log_must_have_what_the_ranks_computed(row: dict[str, Any], told: str | None) -> None:
    assert misreported([row], STRAIGHT, (1e-4, 1e-3)) == told


def test_a_norm_that_cannot_be_told_is_not_looked_for_in_the_log() -> None:
    unknown = {2: step(2, grad_norm=None)}
    assert misreported([{"step": 2, "loss": 3.0, "grad_norm": 7.0}], unknown, (1e-4, 1e-3)) is None


def test_a_difference_of_what_is_drawn_is_told_from_others() -> None:
    drawn = after(mean=1.5, sum=3.0, samples=frozenset({7, 8}))
    assert compare(STRAIGHT, drawn, offset=2).other_samples
    assert not compare(STRAIGHT, after(mean=1.5, sum=3.0), offset=2).other_samples


@pytest.mark.parametrize(
    ("text", "args", "logs"),
    [
        ('parser.add_argument("--log")', (), True),
        ('parser.add_argument("--log")', ("--log", "mine"), False),
        ("parser = None  # edited, and writes no log any more", (), False),
    ],
)
def test_a_generated_script_is_given_a_log_where_it_has_a_flag_for_one(
    tmp_path: Path, text: str, args: tuple[str, ...], logs: bool
) -> None:
    header = Header(
        version="0.1.0", answers={}, digest="", checkpoint_arg="--checkpoint-dir", steps_arg="--steps", proof_args=()
    )
    (tmp_path / "train.py").write_text(text)
    ran: list[Job] = []

    class Idle:
        name = "idle"

        def run(self, job: Job) -> Run:
            ran.append(job)
            return Run(job=job, ends=(), records=tmp_path, seconds=0.0)

    for number, of in enumerate((header, None)):
        (tmp_path / str(number)).mkdir()
        subject = Subject(
            script=tmp_path / "train.py", args=args, nproc=2, cwd=tmp_path, checkpoint_arg="--checkpoint-dir",
            stop_after=None, timeout=1.0, header=of,
        )  # fmt: skip
        bench = Bench(subject, Idle(), tmp_path / str(number))
        assert bench.run(bench.place()).logged == []
    assert [job.args.count("--log") for job in ran] == [int(logs or bool(args)), int(bool(args))]


def test_losses_that_add_up_over_the_ranks_are_the_same() -> None:
    other = {n: dataclasses.replace(total, mean=total.mean / 2) for n, total in after().items()}
    assert compare(STRAIGHT, other, offset=2).apart is None


@pytest.mark.parametrize(
    ("changes", "quantity"),
    [({"mean": 1.1, "sum": 2.2}, "loss"), ({"grad_norm": 4.0}, "gradient norm"), ({"lrs": (0.2,)}, "learning rate")],
)
def test_a_difference_is_named_with_its_step(changes: dict[str, Any], quantity: str) -> None:
    found = compare(STRAIGHT, after(**changes), offset=2)
    assert found.apart is not None
    assert (found.apart.step, found.apart.quantity, found.excuse) == (4, quantity, None)


def test_bf16_rounds_more() -> None:
    assert compare(STRAIGHT, after(mean=1.005, sum=2.01), offset=2).apart is not None
    assert compare(STRAIGHT, after(mean=1.005, sum=2.01), offset=2, precision="bfloat16").apart is None


@pytest.mark.parametrize(
    ("changes", "excuse"),
    [
        ({"samples": frozenset({40})}, "its global batch changes with the ranks: 2 and 1 samples a step"),
        ({"samples": frozenset({98, 99})}, "other samples are drawn"),
        ({"samples": frozenset()}, "what goes into its model was not seen"),
        ({"apart": DRAWS}, DRAWS),
        ({"samples": frozenset({30, 31})}, None),
    ],
    ids=["a batch a rank", "other samples", "no samples", "random numbers", "samples of another step"],
)
def test_what_need_not_be_the_same_is_excused(changes: dict[str, Any], excuse: str | None) -> None:
    found = compare(STRAIGHT, after(mean=9.0, sum=9.0, **changes), offset=2)
    assert found.apart is not None
    assert found.excuse == excuse
