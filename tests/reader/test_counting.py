"""What loops that train count from, and the counts of schedulers."""

from __future__ import annotations

import pytest
from pytorch_fsdp2_dcp.validate.events import Escaped, Kind, Saved, SchedulerBuilt, SchedulerStepped, TrainingLoop

from .programs import SHARDED, only, program

COUNTED = "\nwhile counter.steps < 100:\n    counter.steps += 1"
STEP = "\n    optimizer.step()\n    number += 1"


def start(text: str) -> int | None:
    """What the loop in a program counts from."""
    return only(
        program("import sys\nnumber = 0\nargs = argparse.ArgumentParser().parse_args()\n" + text, PROGRAM), TrainingLoop
    ).start


PROGRAM = "import argparse\nfrom itertools import islice\nfrom tqdm import tqdm\n" + SHARDED


@pytest.mark.parametrize(
    "head, expected",
    [
        ("for step in range(100):", 0),
        ("for step in range(args.steps):", 0),
        ("for step in range(1, 100 + 1):", 1),
        ("for step in tqdm(range(args.steps), disable=True):", 0),
        ("while number < args.steps:", 0),
        ("for step in range(number, args.steps):", 0),
        ("for step in range(int(sys.argv[1]), args.steps):", None),
        ("for step in range(args.steps - int(sys.argv[1])):", None),
        ("for step in range(args.start, args.steps):", None),
        ("for _ in range(100):", None),
        ("for batch in loader:", None),
        ("for step, batch in enumerate(loader):", None),
        ("for step in islice(range(100), 5, None):", None),
        ("while True:", None),
        ("while number != args.steps:", None),
    ],
)
def test_a_training_loop_tells_what_it_counts_from(head: str, expected: int | None) -> None:
    assert start(head + STEP) == expected


@pytest.mark.parametrize(
    "body",
    [
        "    if step < args.start:\n        continue",
        "    if step >= args.start:\n        print(step)",
    ],
)
def test_a_loop_that_may_pass_over_steps_tells_nothing(body: str) -> None:
    assert start("for step in range(100):\n" + body + STEP) is None
    assert start("for step in range(100):\n    if step >= args.end:\n        break" + STEP) == 0


@pytest.mark.parametrize(
    "text, expected",
    [
        ("for step in range(100):", True),
        ("for step in range(0, 100):", True),
        ("for step in range(number, 100):", False),
        ("while number < 100:", True),
        ("while number < 100 and not args.stop:", True),
        ("number = load(number)\nnumber = 0\nwhile number < 100:", False),
        ("number, kept = 0, load(number)\nwhile number < 100:", True),
        ("number, kept = load(number)\nnumber = 0\nwhile number < 100:", False),
        ("counter.steps = 0" + COUNTED, True),
        ("other.steps = load(3)\ncounter.steps = 0" + COUNTED, False),
        ("counter.steps = 0\ncounter.__dict__.update(load(3))" + COUNTED, False),
        ("counter.steps = 0\nsetattr(counter, load(3), 1)" + COUNTED, False),
        ("counter.steps = 0\nshow(**vars(counter))" + COUNTED, True),
        ("class A:\n    steps: int = 0\ncounter.steps = 0" + COUNTED, False),
    ],
)
def test_a_loop_counts_anew_where_nothing_else_is_put_into_its_counter(text: str, expected: bool) -> None:
    before = "from library import load, show\nclass C: pass\ncounter, other, number = C(), C(), 0\n"
    before += "args = argparse.ArgumentParser().parse_args()\n"
    assert only(program(before + text + STEP, PROGRAM), TrainingLoop).anew is expected


@pytest.mark.parametrize("compared, expected", [("loss < best['loss']", 0), ("loss < args.start", None)])
def test_an_order_of_losses_passes_over_nothing(compared: str, expected: int | None) -> None:
    assert start(f"for step in range(100):\n    if {compared}:\n        print(step)" + STEP) == expected


def test_loops_that_do_not_train_and_loops_within_loops_are_not_told() -> None:
    text = "for epoch in range(3):\n    for step in range(5):\n        optimizer.step()\n"
    text += "for i in range(4):\n    print(i)\n"
    told = only(program(text, SHARDED), TrainingLoop)
    assert (told.start, told.at.line) == (0, SHARDED.count("\n") + 1)


@pytest.mark.parametrize(
    "text, escapes",
    [
        ("", False),
        ("print(scheduler.get_last_lr())", False),
        ("scheduler.last_epoch = 5", True),
        ("count = scheduler.last_epoch", True),
        ("scheduler.step(5)", True),
    ],
)
def test_a_program_that_keeps_count_itself_has_its_scheduler_go_out_of_sight(text: str, escapes: bool) -> None:
    found = program(f"scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)\nscheduler.step()\n{text}\n", SHARDED)
    built = only(found, SchedulerBuilt)
    assert next(found.of(SchedulerStepped)).scheduler == built.scheduler
    assert found.escaped(built.scheduler) is escapes
    assert {e.of for e in found.of(Escaped)} == ({built.scheduler} if escapes else set())


def test_schedulers_of_the_program_and_of_transformers_are_schedulers() -> None:
    text = """
from torch.optim.lr_scheduler import LRScheduler
from transformers import get_scheduler

class Own(LRScheduler):
    def __init__(self, optimizer, peak):
        self.peak = peak
        super().__init__(optimizer)

one, other = Own(optimizer, 3), get_scheduler("linear", optimizer, 10, 100)
one.step()
other.step()
"""
    found = program(text, SHARDED)
    built = list(found.of(SchedulerBuilt))
    assert len({b.scheduler for b in built}) == 2
    assert all(b.optimizer is not None and b.optimizer.name == "optimizer" for b in built)
    assert [s.scheduler for s in found.of(SchedulerStepped)] == [b.scheduler for b in built]
    assert not any(found.escaped(b.scheduler) for b in built)


def test_what_else_may_be_in_a_dictionary_is_an_entry_of_unknown_kind() -> None:
    text = """
import json
more = json.load(open("more.json"))
state = {"model": model, **more}
dcp.save(state, checkpoint_id="c/1")
dcp.save({"model": model, "rest": {"step": 3, **more}}, checkpoint_id="c/2")
dcp.save({**model.state_dict(), "step": 3}, checkpoint_id="c/3")
"""
    told = [
        {e.key for e in saved.entries or () if e.kind is Kind.UNKNOWN} for saved in program(text, SHARDED).of(Saved)
    ]
    assert [sorted(keys)[-1:] for keys in told] == [["*"], ["rest.*"], []]
