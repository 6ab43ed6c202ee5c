"""What the probe sees of parameters that `fully_shard` is told to ignore."""

from __future__ import annotations

from pathlib import Path

import pytest
from pytorch_fsdp2_dcp.validate.events import ForwardEntered, Sharded

from ..runs import traces_of


@pytest.mark.slow
def test_ignored_parameters_are_told_by_their_modules_while_they_are_trainable(tmp_path: Path) -> None:
    script = """
        model = Model()
        model.blocks[1].up.requires_grad_(False)
        ignored = {*model.embed.parameters(), *model.blocks[1].up.parameters()}
        for block in model.blocks:
            fully_shard(block, ignored_params=ignored)
        fully_shard(model, ignored_params=ignored)
        model(torch.randn(2, 8))
    """
    trace = traces_of(tmp_path, script, nproc=1)[0]
    assert [[m.name for m in s.ignores] for s in trace.of(Sharded)] == [[], [], ["model.embed"]]
    (entered,) = trace.of(ForwardEntered)
    assert entered.uncovered == ("embed.weight", "embed.bias")
