"""What the probe sees of parameters and buffers that nothing has filled."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from pytorch_fsdp2_dcp.validate.events import ForwardEntered, Unset
from pytorch_fsdp2_dcp.validate.probe.initial import Blanks
from torch import nn

from ..runs import traces_of


def blank() -> tuple[nn.Sequential, Blanks]:
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    model.to_empty(device="cpu")
    blanks = Blanks()
    blanks.mark(model, recurse=True)
    return model, blanks


def test_what_is_left_is_named_once() -> None:
    model, blanks = blank()
    left = blanks.left(model)
    assert left is not None
    assert left.everything
    assert left.parameters == ("0.weight", "0.bias", "1.weight", "1.bias")
    assert left.buffers == ("1.running_mean", "1.running_var"), "a number of batches cannot be NaN"
    assert blanks.left(model) is None


def test_what_is_filled_is_not_left() -> None:
    model, blanks = blank()
    model[0].reset_parameters()
    nn.init.zeros_(model[1].weight)
    model[1].reset_running_stats()
    assert blanks.left(model) == Unset(parameters=("1.bias",))
    assert blank()[1].left(nn.Linear(2, 2)) is None


@pytest.mark.slow
def test_a_model_on_the_meta_device_is_entered_though_fsdp_refuses(tmp_path: Path) -> None:
    script = """
        import contextlib
        with torch.device("meta"):
            model = shard(Model())
        with contextlib.suppress(RuntimeError):
            model(torch.randn(2, 8))
        with torch.device("meta"):
            model = shard(Model())
        model.to_empty(device="cpu")
        model.embed.reset_parameters()
        model(torch.randn(2, 8))
        model(torch.randn(2, 8))
    """
    first, second, third = traces_of(tmp_path, script, nproc=1)[0].of(ForwardEntered)
    assert (first.on_meta, first.unset, first.sharded) == (True, None, True)
    assert not second.on_meta
    assert second.unset is not None
    assert (len(second.unset.parameters), second.unset.everything) == (8, False)
    assert (third.on_meta, third.unset) == (False, None)
