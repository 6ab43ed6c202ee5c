"""What is concluded from several ranks together: records written by hand, one story each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pytorch_fsdp2_dcp.validate.events import (
    Circumstances,
    CollectiveCalled,
    Entry,
    Event,
    Exited,
    ForwardEntered,
    GroupCreated,
    Kind,
    Location,
    Ref,
    Saved,
    to_json,
)
from pytorch_fsdp2_dcp.validate.launch.job import Job, RankEnd, Run
from pytorch_fsdp2_dcp.validate.probe.merge import merge

DEADLINE = 10.0
NOW = 1000.0


def story(tmp_path: Path, *ranks: tuple[str, int | str | None], waiting: float = 5.0) -> list[list[str | None]]:
    """`when.only` of each collective on each rank.

    A rank is its calls, a letter each (the line is the letter's place in the alphabet; a capital never returned), and
    how it ended: a code, an exception, or None at the deadline.
    """
    (tmp_path / "records").mkdir()
    ends = []
    for number, (calls, end) in enumerate(ranks):
        records: list[dict[str, Any]] = []
        for order, call in enumerate(calls):
            when = Circumstances(rank=number, step=0)
            at = Location("train.py", ord(call.lower()))
            records.append(to_json(CollectiveCalled(order=order, at=at, when=when, op=call.lower())))
            records.append({"note": "entered", "order": order, "time": NOW - waiting})
            if call.islower():
                records.append({"note": "returned", "order": order})
        code = 1 if isinstance(end, str) else end
        error = end if isinstance(end, str) else None
        if end is not None:
            exited = Exited(order=len(calls), at=Location("train.py", 1), code=code, error=error)
            records.append(to_json(exited))
        _write(tmp_path, number, records)
        ends.append(RankEnd(rank=number, code=code, error=error))
    traces = merge(_run(tmp_path, ends))
    return [[e.when.only for e in trace.of(CollectiveCalled)] for trace in traces]


def _write(tmp_path: Path, rank: int, records: list[dict[str, Any]]) -> None:
    (tmp_path / "records" / f"rank-{rank}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))


def _run(tmp_path: Path, ends: list[RankEnd]) -> Run:
    if any(end.code is None for end in ends):
        (tmp_path / "hung").write_text(repr(NOW))
    job = Job(
        script=Path("train.py"), args=(), nproc=len(ends), cwd=tmp_path, scratch=tmp_path, deadline=DEADLINE
    )  # fmt: skip
    return Run(job=job, ends=tuple(ends), records=tmp_path / "records", seconds=1.0)


ALONE_0 = "rank 0 of 2"


def test_the_call_that_the_others_make_nowhere_is_the_guarded_one_wherever_it_stands(tmp_path: Path) -> None:
    """Rank 0 saves at a later line than the forward in which rank 1 waits; rank 0 has been in that forward too."""
    assert story(tmp_path, ("fgS", None), ("fgF", None)) == [[None, None, "rank 0 of 2"], [None, None, None]]


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        ([("abc", 0), ("abc", 0)], [[None] * 3, [None] * 3]),
        ([("aB", None), ("a", 0)], [[None, ALONE_0], [None]]),
        ([("aB", None), ("a", None)], [[None, ALONE_0], [None]]),
        ([("aB", "RuntimeError: peer closed"), ("a", 0)], [[None, ALONE_0], [None]]),
        ([("aB", None), ("aC", None)], [[None, ALONE_0], [None, None]]),
        ([("aC", None), ("aB", None)], [[None, None], [None, "rank 1 of 2"]]),
        ([("aB", "RuntimeError: peer closed"), ("aC", "RuntimeError: peer closed")], [[None, ALONE_0], [None, None]]),
        ([("aB", "RuntimeError: peer closed"), ("a", "ValueError: its own")], [[None, None], [None]]),
        ([("aB", None), ("a", "ValueError: its own")], [[None, None], [None]]),
        ([("aB", "RuntimeError: peer closed"), ("a", -11)], [[None, None], [None]]),
        ([("ab", 0), ("ba", 0)], [[None, None], [None, None]]),
        ([("aB", None), ("aC", None), ("aC", None)], [[None, "rank 0 of 3"], [None, None], [None, None]]),
        ([("aB", None), ("aB", None), ("a", 0)], [[None, "ranks 0, 1 of 3"]] * 2 + [[None]]),
        ([("", 1), ("", 0)], [[], []]),
    ],
    ids=[
        "all do the same",
        "the other has ended",
        "the other computes on",
        "the other has ended and the call fails",
        "they stand in two calls",
        "they stand in two calls, the other way round",
        "two calls meet and fail",
        "the other failed first",
        "the other failed first, and this one waits",
        "the other was killed",
        "another order, and all is well",
        "one of three",
        "two of three",
        "no calls",
    ],
)
def test_who_is_alone_with_a_collective(
    ranks: list[tuple[str, int | str | None]], expected: list[list[str | None]], tmp_path: Path
) -> None:
    assert story(tmp_path, *ranks) == expected


def test_a_rank_that_is_merely_ahead_when_time_runs_out_is_not_alone(tmp_path: Path) -> None:
    """A slow script at its deadline is in the middle of something, and no rank waits for long."""
    assert story(tmp_path, ("aB", None), ("a", None), waiting=0.3) == [[None, None], [None]]


def test_calls_in_a_group_that_not_all_belong_to_are_that_groups_business(tmp_path: Path) -> None:
    (tmp_path / "records").mkdir()
    at = Location("train.py", 1)
    created: Event = GroupCreated(order=0, at=at, group=Ref(1, "group"))
    call = CollectiveCalled(order=1, at=at, op="barrier", group=Ref(1, "group"))
    _write(tmp_path, 0, [to_json(created), {"note": "group", "id": 1}, to_json(call)])
    _write(tmp_path, 1, [to_json(created)])
    traces = merge(_run(tmp_path, [RankEnd(rank=0, code=0), RankEnd(rank=1, code=0)]))
    assert [e.when.only for trace in traces for e in trace.events] == [None, None, None]


def test_names_come_from_the_place_in_the_model_and_from_variables(tmp_path: Path) -> None:
    (tmp_path / "records").mkdir()
    refs = [Ref(n, "Linear") for n in (1, 2, 3, 4)]
    events = [GroupCreated(order=n, at=Location("train.py", 1), group=ref) for n, ref in enumerate(refs)]
    notes = [
        {"note": "held", "edges": [[1, 2, "0"], [2, 3, "blocks"], [4, 1, "_orig_mod"]]},
        {"note": "name", "id": 3, "name": "model"},
        {"note": "name", "id": 1, "name": "block"},
        {"note": "failure", "text": "ours"},
    ]
    _write(tmp_path, 0, [*map(to_json, events), *notes])
    (trace,) = merge(_run(tmp_path, [RankEnd(rank=0, code=-9)]))
    assert [e.group.name for e in trace.of(GroupCreated)] == ["model.blocks.0", "model.blocks", "model", "Linear"]
    assert trace.inside(refs[0], refs[2])
    assert [note.text for note in trace.notes] == ["ours"]
    assert not trace.ended


@pytest.mark.parametrize(
    ("code", "error", "exited", "ended"),
    [
        (0, None, True, True),
        (3, None, True, True),
        (-6, None, True, True),  # aborted by torch while it was torn down
        (0, None, False, True),  # os._exit(0)
        (1, None, False, False),  # os._exit(1), or killed by something that counts as an exit
        (1, "ValueError: x", True, False),
        (-9, None, False, False),
        (None, None, False, False),
    ],
)
def test_when_a_rank_has_come_to_its_end(
    code: int | None, error: str | None, exited: bool, ended: bool, tmp_path: Path
) -> None:
    (tmp_path / "records").mkdir()
    _write(tmp_path, 0, [to_json(Exited(order=0, at=Location("train.py", 1), code=code))] if exited else [])
    (trace,) = merge(_run(tmp_path, [RankEnd(rank=0, code=code, error=error)]))
    assert trace.ended is ended


def test_a_rank_killed_before_it_wrote_anything_has_an_empty_trace(tmp_path: Path) -> None:
    (tmp_path / "records").mkdir()
    (trace,) = merge(_run(tmp_path, [RankEnd(rank=0, code=-9)]))
    assert trace.events == ()


def test_values_are_compared_save_by_save(tmp_path: Path) -> None:
    (tmp_path / "records").mkdir()
    for rank in range(2):
        records: list[dict[str, Any]] = []
        for order in range(3):
            target = "a" if order < 2 else "b"
            entries = (Entry(key="position", kind=Kind.VALUE),)
            records.append(to_json(Saved(order=order, at=Location("t.py", 1), target=target, entries=entries)))
            records.append({"note": "digests", "order": order, "of": {"position": rank if order == 1 else 0}})
        _write(tmp_path, rank, records)
    traces = merge(_run(tmp_path, [RankEnd(rank=r, code=0) for r in range(2)]))
    for trace in traces:
        assert [[e.per_rank for e in s.entries or ()] for s in trace.of(Saved)] == [[False], [True], [False]]


def test_weights_that_ranks_begin_with_are_compared_where_all_have_them(tmp_path: Path) -> None:
    (tmp_path / "records").mkdir()
    for rank in range(2):
        records: list[dict[str, Any]] = []
        for order, own in enumerate(({"a": 1}, {"a": 1, "b": rank}, {str(rank): 1}, {})):
            records.append(to_json(ForwardEntered(order=order, at=Location("t.py", 1), module=Ref(order, "model"))))
            if own:
                records.append({"note": "beginning", "order": order, "of": own})
        _write(tmp_path, rank, records)
    for trace in merge(_run(tmp_path, [RankEnd(rank=r, code=0) for r in range(2)])):
        assert [e.alike for e in trace.of(ForwardEntered)] == [True, False, None, None]
