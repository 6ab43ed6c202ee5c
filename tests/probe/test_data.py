"""What the probe sees of data: samplers, loaders, and whether first batches are alike."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from pytorch_fsdp2_dcp.validate.events import (
    BatchesDrawn,
    BatchesPassedOver,
    ForwardEntered,
    LoaderBuilt,
    SamplerBuilt,
    Saved,
    Seeded,
)
from pytorch_fsdp2_dcp.validate.rules import judge

from ..runs import traces_of


@pytest.mark.slow
def test_first_batches_are_compared_unless_all_their_samples_are_equal(tmp_path: Path) -> None:
    script = """
        from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

        data = TensorDataset(torch.arange(16.0).reshape(16, 1))
        divided = DistributedSampler(data, shuffle=False)
        alone = DistributedSampler(data, num_replicas=1, rank=0)
        for loader in (
            DataLoader(data, batch_size=4),
            DataLoader(data, batch_size=4, sampler=divided),
            DataLoader(TensorDataset(torch.ones(16, 1)), batch_size=4),
        ):
            for _ in range(2):
                for (batch,) in loader:
                    assert batch.shape == (4, 1)
    """
    for trace in traces_of(tmp_path, script):
        assert [(s.everyone, s.shuffles) for s in trace.of(SamplerBuilt)] == [(True, False), (False, True)]
        plain, with_sampler, equal = trace.of(LoaderBuilt)
        assert [b.sampler for b in (plain, equal)] == [None, None]
        assert with_sampler.sampler == next(trace.of(SamplerBuilt)).sampler
        drawn = [(d.loader, d.alike) for d in trace.of(BatchesDrawn)]
        expected = [(plain, True), (with_sampler, False), (equal, None)]
        assert drawn == [(built.loader, alike) for built, alike in expected for _ in range(2)]


@pytest.mark.slow
def test_passes_that_are_underway_and_batches_that_are_passed_over(tmp_path: Path) -> None:
    script = """
        from torch.utils.data import DataLoader, Subset, TensorDataset

        data = TensorDataset(torch.arange(32.0).reshape(4, 8))
        loader, part = DataLoader(data), DataLoader(Subset(data, range(4)))
        model = nn.Linear(8, 8)
        for start in (0, 2):
            for step, (batch,) in enumerate(loader):
                if step >= start:
                    model(batch).sum().backward()
                    dcp.save({"step": step}, checkpoint_id=f"c/{start}/{step}")
        with torch.no_grad():
            for (batch,) in part:
                model(batch)
        dcp.save({"step": 4}, checkpoint_id="c/last")
    """
    for trace in traces_of(tmp_path, script):
        whole, part = trace.of(LoaderBuilt)
        assert (whole.rewinds, part.rewinds) == (True, None)
        assert [bool(saved.underway) for saved in trace.of(Saved)] == [True] * 3 + [False] + [True, False] + [False]
        (passed_over,) = trace.of(BatchesPassedOver)
        assert passed_over.loader == whole.loader


@pytest.mark.slow
def test_seeds_are_compared_over_the_ranks(tmp_path: Path) -> None:
    script = """
        torch.manual_seed(7)
        shard(Model())  # from here on torch has something of its own around manual_seed
        torch.manual_seed(7 + rank)
        from torch.utils.data import DistributedSampler
        DistributedSampler(range(8), seed=7)
        DistributedSampler(range(8), seed=7 + rank)
    """
    for trace in traces_of(tmp_path, script):
        *_, same, apart = trace.of(Seeded)
        assert (same.per_rank, apart.per_rank) == (False, True)
        assert [sampler.per_rank for sampler in trace.of(SamplerBuilt)] == [False, True]


ON_A_MESH = """
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "{other}"))
    peer = mesh["dp"].get_local_rank()
    model = Model()
    for part in (*model.blocks, model):
        fully_shard(part, mesh=mesh["dp"])
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("nproc", "model", "samples", "told"),  # told: who was given the same as each rank
    [
        (2, "model = shard(Model())", "torch.randn(2, 8)", [(1,), (0,)]),
        (2, "model = shard(Model())", "torch.randn(4, 8).chunk(2)[rank]", [(), ()]),
        (2, "model = shard(Model())", "torch.ones(2, 8)", [(), ()]),  # all the data that there is, perhaps
        (4, ON_A_MESH.format(other="tp"), "torch.randn(2, 8)", [(2,), (3,), (0,), (1,)]),
        (4, ON_A_MESH.format(other="tp"), "torch.randn(4, 8).chunk(2)[peer]", [()] * 4),
    ],
)
def test_ranks_that_train_on_the_same_samples(
    tmp_path: Path, nproc: int, model: str, samples: str, told: list[tuple[int, ...]]
) -> None:
    script = f"""
{textwrap.dedent(model)}
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    model({samples}).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
    traces = traces_of(tmp_path, script, nproc=nproc, figures=True)
    assert [[e.same_samples for e in trace.of(ForwardEntered)] for trace in traces] == [[one, (), ()] for one in told]
    others = [next(trace.of(ForwardEntered)).other_samples for trace in traces]
    assert others == ["rank" in samples or "peer" in samples] * nproc
    found = [(f.code, f.ranks) for f in judge(traces) if f.code == "FS501"]
    assert found == ([("FS501", tuple(range(nproc)))] if any(told) else [])


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "told"), [("", ["FS501"]), ("[rank::2]", [])])
def test_rows_of_a_batch_may_be_divided_after_the_loader(tmp_path: Path, rows: str, told: list[str]) -> None:
    script = f"""
        from torch.utils.data import DataLoader, TensorDataset

        model = shard(Model())
        optimizer = torch.optim.AdamW(model.parameters())
        for (batch,) in DataLoader(TensorDataset(torch.randn(8, 8)), batch_size=4):
            model(batch{rows}).pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    """
    traces = traces_of(tmp_path, script, figures=True)
    assert [f.code for f in judge(traces) if f.code == "FS501"] == told
