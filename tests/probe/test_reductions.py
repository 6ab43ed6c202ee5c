"""What the probe sees of reductions: what is read before them, and what is differentiated after them."""

from __future__ import annotations

from pathlib import Path

import pytest
from pytorch_fsdp2_dcp.validate.events import Backward, CollectiveCalled, PartialRead

from ..runs import traces_of


@pytest.mark.slow
def test_partial_reads_and_backward_from_what_was_reduced(tmp_path: Path) -> None:
    script = """
        model = shard(Model())
        def loss():
            return model(torch.randn(2, 8)).pow(2).mean()
        first = loss()
        dist.all_reduce(first)
        (first / 2).backward()
        second = loss()
        second.backward()
        dist.all_reduce(second)
        third = loss()
        tokens = torch.ones(())
        dist.all_reduce(tokens)
        (third / tokens).backward()
        norm = model.embed.weight.grad.norm()
        norm.item()
        float(norm)
        norm.full_tensor().item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item()
    """
    for trace in traces_of(tmp_path, script):
        reduced, second, tokens = (c for c in trace.of(CollectiveCalled) if c.op == "all_reduce")
        assert [b.of for b in trace.of(Backward)] == [reduced.of, (), ()]
        assert len(reduced.of) == 1
        assert tokens.of == ()
        assert not set(second.of) & set(reduced.of)
        lines = (tmp_path / "cwd" / "script.py").read_text().splitlines()
        assert [lines[r.at.line - 1] for r in trace.of(PartialRead)] == ["norm.item()", "float(norm)"]
