"""What is told of a run that hangs: who waits in which call, where, and for whom."""

from __future__ import annotations

from pathlib import Path

import pytest
from pytorch_fsdp2_dcp.validate.events import Circumstances, CollectiveCalled, Event, Location, Ref
from pytorch_fsdp2_dcp.validate.launch.job import Job, RankEnd, Run
from pytorch_fsdp2_dcp.validate.probe.merge import merge
from pytorch_fsdp2_dcp.validate.proofs.hang import describe_hang, standing
from pytorch_fsdp2_dcp.validate.trace import Trace

from ..runs import run_script


def in_call(op: str, line: int, group: Ref | None = None) -> CollectiveCalled:
    when = Circumstances(rank=0, step=3, finished=False)
    return CollectiveCalled(order=1, at=Location("train.py", line), when=when, op=op, group=group)


def hung(tmp_path: Path, *ranks: tuple[int | None, str | None, list[Event]]) -> tuple[Run, list[Trace]]:
    """A run of ranks, each with its exit status, its stack and its events."""
    job = Job(script=tmp_path / "train.py", args=(), nproc=len(ranks), cwd=tmp_path, scratch=tmp_path, deadline=60)
    ends = tuple(RankEnd(rank=rank, code=code, stack=stack) for rank, (code, stack, _) in enumerate(ranks))
    traces = [Trace(origin="probe", events=tuple(events)) for _, _, events in ranks]
    return Run(job=job, ends=ends, records=tmp_path / "records", seconds=60.0), traces


def test_ranks_that_wait_in_one_call_are_told_together_with_those_that_it_lacks(tmp_path: Path) -> None:
    reduces = in_call("all_reduce", 9)
    stack = f"""Thread 0x0001 (most recent call first):
  File "{tmp_path}/other.py", line 3 in loads
Current thread 0x0002 (most recent call first):
  File "/usr/lib/python3/site-packages/torch/nn/module.py", line 70 in forward
  File "{tmp_path}/train.py", line 12 in evaluate
  File "{tmp_path}/train.py", line 30 in main
"""
    run, traces = hung(tmp_path, (None, "", [reduces]), (0, None, []), (None, "", [reduces]), (None, stack, []))
    assert describe_hang(run, traces) == (
        "still running after 60 s: ranks 0 and 2 wait in all_reduce at train.py:9 for ranks 1 and 3; rank 1 had exited "
        "with 0; rank 3 is at train.py:12, outside any call that the probe watches"
    )
    assert [(one.rank, one.missing) for one in standing(run, traces)] == [(0, (1, 3)), (1, ()), (2, (1, 3)), (3, ())]


def test_nobody_is_missed_where_all_have_come_or_a_call_is_of_some_ranks_only(tmp_path: Path) -> None:
    same = in_call("barrier", 4)
    run, traces = hung(tmp_path, (None, "", [same]), (None, "", [same]))
    assert "ranks 0 and 1 wait in barrier at train.py:4 (after 3 optimizer steps" in describe_hang(run, traces)
    run, traces = hung(tmp_path, (None, "", [in_call("barrier", 4, Ref(7, "pair"))]), (None, "", []))
    assert [one.missing for one in standing(run, traces)] == [(), ()]


@pytest.mark.slow
def test_a_forward_that_one_rank_leaves_out_is_told_with_where_that_one_is(tmp_path: Path) -> None:
    script = """
        import time

        model = shard(Model())
        if rank != 1:
            model(torch.randn(2, 8))
        else:
            time.sleep(600)
    """
    run = run_script(tmp_path, script, deadline=15)
    first, second = standing(run, merge(run))
    assert first.missing == (1,)
    assert "all_gather" in (first.call or "")  # torch calls it all_gather_into_tensor, all_gather_single since 2.13
    assert (second.call, second.missing) == (None, ())
    assert second.at is not None
    assert first.at is not None
    assert int(second.at.rpartition(":")[2]) == int(first.at.rpartition(":")[2]) + 2
