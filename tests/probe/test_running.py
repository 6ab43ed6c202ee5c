"""What the probe sees by comparing: ways through a model, weights after a step, buffers, dtypes."""

from __future__ import annotations

from pathlib import Path

import pytest
from pytorch_fsdp2_dcp.validate.events import (
    ForwardEntered,
    Kind,
    Loaded,
    Location,
    Narrowed,
    RanksParted,
    Ref,
    Saved,
    Stepped,
)
from pytorch_fsdp2_dcp.validate.probe.parting import Call, parted

from ..runs import only, traces_of

A, B = (Call(number, number, Location("train.py", number)) for number in (1, 2))
AT = Location("train.py", 1)


def ways(*ranks: list[Call], whole: bool = True) -> dict[int, Call | None] | None:
    """What the ranks call where they part within one call of the model, which they have left if `whole`."""
    orders = range(2 if whole else 1)
    events = [[ForwardEntered(order=o, at=AT, module=Ref(9, "model")) for o in orders] for _ in ranks]
    found = parted([{0: way} for way in ranks], [{0} if whole else set() for _ in ranks], [list(e) for e in events])
    return None if found is None else dict(found.calls)


def test_ranks_part_at_the_first_call_that_differs() -> None:
    assert ways([A, B], [A, B]) is None
    assert ways([A]) is None
    assert ways([A, B], [B, A]) == {0: A, 1: B}
    assert ways([A, B, B], [A, B, A], [A, B, B]) == {0: B, 1: A, 2: B}
    assert ways([A, B], [A]) == {0: B, 1: None}


def test_a_rank_that_is_merely_behind_has_not_parted() -> None:
    assert ways([A, B], [A], whole=False) is None
    assert ways([A, B], [B], whole=False) == {0: A, 1: B}


@pytest.mark.slow
def test_ways_through_a_model_are_compared_and_the_fewest_are_told(tmp_path: Path) -> None:
    script = """
        class Chosen(Model):
            def forward(self, x, number=0):
                return self.blocks[number](self.embed(x))

        model = shard(Chosen())
        same = shard(Model())
        for _ in range(2):
            same(torch.randn(2, 8)).sum().backward()
            with torch.no_grad():
                model(torch.randn(2, 8))
        model(torch.randn(2, 8), number=rank)
    """
    first, second = traces_of(tmp_path, script)
    told = only(first, RanksParted)
    assert (told.module.name, told.instead) == ("model.blocks.0", "`model.blocks.1` on rank 1")
    assert told.order == [*first.of(ForwardEntered)][-1].order
    assert [*second.of(RanksParted)] == []


@pytest.mark.slow
def test_steps_are_looked_at_until_one_changes_something(tmp_path: Path) -> None:
    script = """
        def step(optimizer, closure=None):
            model(torch.randn(2, 8)).pow(2).mean().backward()
            optimizer.step(closure) if closure else optimizer.step()

        model = shard(Model())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        step(optimizer)  # a warm-up
        optimizer.param_groups[0]["lr"] = 0.1
        optimizer.zero_grad()
        optimizer.step()
        step(optimizer, lambda: None)
        step(optimizer)
        step(optimizer)
        plain = nn.Linear(8, 8, dtype=torch.bfloat16)
        other = torch.optim.SGD(plain.parameters(), lr=1e-30)
        plain(torch.randn(2, 8, dtype=torch.bfloat16)).sum().backward()
        other.step()
    """
    for trace in traces_of(tmp_path, script):
        seen = [(s.changed, s.gradients) for s in trace.of(Stepped)]
        assert seen == [(None, None), (False, False), (None, None), (True, True), (None, None), (False, True)]


@pytest.mark.slow
def test_buffers_are_compared_at_saves_and_dtypes_at_loads(tmp_path: Path) -> None:
    script = """
        from torch.distributed.checkpoint.state_dict import get_model_state_dict

        class Normed(Model):
            def __init__(self):
                super().__init__()
                self.norm = nn.BatchNorm1d(8, affine=False)
                self.register_buffer("own", torch.tensor([rank]), persistent=False)

        model = shard(Normed())
        dcp.save({"model": model, "t": torch.zeros(2)}, checkpoint_id="a")
        model.norm(torch.randn(4, 8) + rank)
        dcp.save({"model": get_model_state_dict(model)}, checkpoint_id="b")
        dcp.load({"model": model, "t": torch.zeros(2, dtype=torch.float16)}, checkpoint_id="a")
        model.embed.to(torch.bfloat16)
        dcp.load({"model": get_model_state_dict(model)}, checkpoint_id="b")
    """
    for trace in traces_of(tmp_path, script):
        equal, apart = ([e.apart for e in s.entries or () if e.kind is Kind.MODEL] for s in trace.of(Saved))
        assert equal == [()]
        assert apart == [("norm.running_mean", "norm.running_var")]
        whole, short = trace.of(Loaded)
        assert [e.narrowed for e in whole.entries or ()] == [None, None]
        narrowed = Narrowed(names=("embed.weight", "embed.bias"), stored="float32", into="bfloat16")
        assert [e.narrowed for e in short.entries or ()] == [narrowed]
