"""What the probe sees of weights that are shared."""

from __future__ import annotations

from pathlib import Path

import pytest
from pytorch_fsdp2_dcp.validate.events import Parallelised, Sharded, Tied

from ..runs import traces_of


@pytest.mark.slow
def test_ties_are_seen_when_they_are_made_and_made_again(tmp_path: Path) -> None:
    script = """
        class Tied(nn.Module):
            def __init__(self):
                super().__init__()
                self.embed = nn.Embedding(4, 8)
                self.head = nn.Linear(8, 4, bias=False)
                self.head.weight = self.embed.weight

        with torch.device("meta"):
            model = Tied()
        model.to_empty(device="cpu")
        model.embed.weight = model.head.weight
        nn.init.ones_(model.embed.weight)
        other = nn.Linear(8, 4)
        other.weight = nn.Parameter(other.weight.detach())
        fully_shard([model.embed, model.head])
        fully_shard(model)
        model.to_empty(device="cpu")
    """
    trace = traces_of(tmp_path, script, nproc=1)[0]
    ties = list(trace.of(Tied))
    assert [(t.module.name, t.name, t.to.name if t.to else None) for t in ties] == [
        ("model.head", "weight", "model.embed"),
        ("model.embed", "weight", "model.head"),
    ]
    assert [s.beside for s in trace.of(Sharded)] == [(ties[0].module,), (ties[1].module,), ()]


@pytest.mark.slow
def test_a_plan_that_splits_both_ends_of_a_tie_renews_them(tmp_path: Path) -> None:
    script = """
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

        class Tied(nn.Module):
            def __init__(self):
                super().__init__()
                self.embed = nn.Embedding(4, 8)
                self.inner = nn.Linear(8, 8)
                self.head = nn.Linear(8, 4, bias=False)
                self.head.weight = self.embed.weight

        mesh = init_device_mesh("cpu", (1,), mesh_dim_names=("tp",))
        model = Tied()
        parallelize_module(model, mesh, {"inner": ColwiseParallel()})
        parallelize_module(model, mesh, {"head": ColwiseParallel()})
    """
    trace = traces_of(tmp_path, script, nproc=1)[0]
    assert [[m.name for m in p.renewed] for p in trace.of(Parallelised)] == [[], ["model.head"]]
