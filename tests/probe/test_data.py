"""What the probe sees of data: samplers, loaders, and whether first batches are alike."""

from __future__ import annotations

from pathlib import Path

import pytest
from pytorch_fsdp2_dcp.validate.events import BatchesDrawn, BatchesPassedOver, LoaderBuilt, SamplerBuilt, Saved, Seeded

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
    """
    for trace in traces_of(tmp_path, script):
        *_, same, apart = trace.of(Seeded)
        assert (same.per_rank, apart.per_rank) == (False, True)
