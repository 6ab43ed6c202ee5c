"""What the probe sees of gathering: what a group takes, what it keeps, and what the program gathers itself."""

from __future__ import annotations

from pathlib import Path

import pytest
from pytorch_fsdp2_dcp.validate.events import Resharded, Sharded, Unsharded

from ..runs import only, traces_of


@pytest.mark.slow
def test_what_groups_take_and_keep_and_what_the_program_gathers(tmp_path: Path) -> None:
    script = """
        model = Model()
        fully_shard(model.embed, reshard_after_forward=True)
        for block in model.blocks:
            fully_shard(block)
        fully_shard(model)
        model.unshard()
        model.reshard()
    """
    trace = traces_of(tmp_path, script, nproc=1)[0]
    *_, model = sharded = list(trace.of(Sharded))
    assert [(s.manages, s.keeps) for s in sharded] == [(True, False), (True, True), (True, True), (False, True)]
    assert only(trace, Unsharded).module == only(trace, Resharded).module == model.module
