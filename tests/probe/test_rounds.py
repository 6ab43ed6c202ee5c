"""Ranks that go round a loop more often than others: told from those that stand in a guarded call."""

from __future__ import annotations

from pathlib import Path

import pytest
from pytorch_fsdp2_dcp.validate.events import CollectiveCalled, Event, ForwardEntered, Location, Ref, RoundsDiffer
from pytorch_fsdp2_dcp.validate.probe.merge import merge
from pytorch_fsdp2_dcp.validate.probe.rounds import Line, Stack, Way, more_rounds
from pytorch_fsdp2_dcp.validate.rules import judge

from ..runs import run_script

PROGRAM = """\
def step():
    model()
def train():
    for _ in batches:
        model()
for _ in epochs:
    model()
    save()
    train()
model()
train()
save()
"""


def forward(order: int, line: int = 7) -> Event:
    return ForwardEntered(order=order, at=Location("train.py", line), module=Ref(1, "model"), sharded=True)


def save(order: int, line: int) -> Event:
    return CollectiveCalled(order=order, at=Location("train.py", line), op="barrier")


@pytest.fixture
def stacks(tmp_path: Path) -> dict[str, Stack]:
    """Stacks by the lines that the calls are at, in the functions that these are in."""
    (program := tmp_path / "train.py").write_text(PROGRAM)
    lines = {n: Line(str(program), 1 if n <= 2 else 3 if n <= 5 else 0, n) for n in range(1, 13)}
    return {text: tuple(lines[int(n)] for n in text.split(">")) for text in ("7", "8", "12", "11>5", "9>5", "10")}


@pytest.mark.parametrize(
    ("goes_on", "stands", "ranks"),
    [
        ("7", "12", [0]),  # in the loop, after it
        ("7", "8", []),  # both in the loop
        ("11>5", "12", [0]),  # in a loop in a function, after its call
        ("9>5", "8", []),  # the loop around both goes on
        ("10", "12", []),  # in no loop
        ("7", None, [0]),  # the other has ended
    ],
)
def test_a_round_that_the_others_are_not_in(
    goes_on: str, stands: str | None, ranks: list[int], stacks: dict[str, Stack]
) -> None:
    own: list[Event] = [forward(0), forward(1)]
    other: list[Event] = [forward(0)] if stands is None else [forward(0), save(1, 12)]
    of_ranks = [Way({1: stacks[goes_on]}), Way({} if stands is None else {1: stacks[stands]})]
    assert more_rounds({r: e[1] for r, e in enumerate((own, other)) if len(e) > 1}, [own, other], 1, of_ranks) == ranks


def test_a_call_that_the_others_never_made_is_no_round(stacks: dict[str, Stack]) -> None:
    own: list[Event] = [forward(0), forward(1, line=10)]
    assert more_rounds({0: own[1]}, [own, [forward(0)]], 1, [Way({1: stacks["7"]}), Way({})]) == []
    barriers: list[Event] = [save(0, 7), save(1, 7)]
    assert more_rounds({0: barriers[1]}, [barriers, [save(0, 7)]], 1, [Way({1: stacks["7"]}), Way({})]) == []
    assert more_rounds({0: own[0]}, [[own[0]], []], 0, [Way({0: stacks["7"]}), Way({})]) == []


@pytest.mark.parametrize(
    ("batches", "others", "ranks"), [(3, 2, [0]), (2, 2, []), (2, 3, []), (None, 2, []), (3, None, [])]
)
def test_a_rank_with_fewer_batches_has_come_to_its_last(
    batches: int | None, others: int | None, ranks: list[int], stacks: dict[str, Stack]
) -> None:
    calls: list[list[Event]] = [[forward(0), forward(1)], [forward(0), save(1, 8)]]
    ways = [Way({1: stacks["7"]}, batches), Way({1: stacks["8"]}, others)]
    assert more_rounds({0: calls[0][1], 1: calls[1][1]}, calls, 1, ways) == ranks


@pytest.mark.slow
@pytest.mark.parametrize("after", ["", "dist.barrier()", "dcp.save({'x': torch.zeros(2)}, checkpoint_id='c')"])
def test_the_cause_of_the_hang_is_told_and_not_the_call_that_others_stand_in(after: str, tmp_path: Path) -> None:
    script = f"""
        model = shard(Model())
        optimizer = torch.optim.AdamW(model.parameters())
        for x in torch.randn(5, 2, 8)[rank::2]:
            model(x).pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        {after}
    """
    run = run_script(tmp_path, script, deadline=20)
    traces = merge(run)
    assert [[e.at.line for e in trace.of(RoundsDiffer)] != [] for trace in traces] == [True, False]
    assert [(f.code, f.ranks) for f in judge(traces) if f.severity.fails] == [("FS504", (0,))]


@pytest.mark.slow
def test_a_guarded_call_in_the_loop_stays_one(tmp_path: Path) -> None:
    script = """
        model = shard(Model())
        for step in range(3):
            model(torch.randn(2, 8)).pow(2).mean().backward()
            if rank == 0 and step == 1:
                dcp.save({"x": torch.zeros(2)}, checkpoint_id="c")
    """
    traces = merge(run_script(tmp_path, script, deadline=20))
    assert [f.code for f in judge(traces) if f.severity.fails] == ["FS102"]
