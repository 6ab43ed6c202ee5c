"""What the probe sees of the weights that ranks begin with."""

from __future__ import annotations

from pathlib import Path

import pytest
from pytorch_fsdp2_dcp.validate.events import ForwardEntered

from ..runs import traces_of


@pytest.mark.slow
def test_weights_are_compared_as_far_as_nothing_has_set_them_since_sharding(tmp_path: Path) -> None:
    script = """
        from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

        def call(model):
            model(torch.randn(2, 8))
            model(torch.randn(2, 8))

        call(shard(Model()))  # all ranks have one seed so far
        torch.manual_seed(rank)
        call(shard(Model()))
        model = shard(Model())
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.to_local().uniform_(-1, 1)
        call(model)
        model = shard(Model())
        model.embed.weight.to_local().data.zero_()
        call(model)
        with torch.device("meta"):
            model = shard(Model())
        model.to_empty(device="cpu")
        call(model)
        model = fully_shard(Model(), mesh=dist.DeviceMesh("cpu", [rank]))
        call(model)
        for seed in (7, rank):
            torch.manual_seed(seed)
            with torch.device("meta"):
                model = shard(Model())
            model.to_empty(device="cpu")
            set_model_state_dict(model, Model().state_dict(), options=StateDictOptions(full_state_dict=True))
            call(model)
        with torch.device("meta"):
            model = shard(Model())
        model.to_empty(device="cpu")
        options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
        set_model_state_dict(model, {} if rank else Model().state_dict(), options=options)
        call(model)
    """
    for trace in traces_of(tmp_path, script):
        first_and_second = [entered.alike for entered in trace.of(ForwardEntered)]
        assert first_and_second[::2] == [True, False, None, False, None, None, True, False, None]
        assert first_and_second[1::2] == [None] * 9
