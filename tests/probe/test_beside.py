"""Weights that a script keeps beside those that its optimizers step, as the probe finds them."""

from __future__ import annotations

from pathlib import Path

import pytest
from pytorch_fsdp2_dcp.validate.probe.figures import figures

from ..runs import run_script

KEPT = """
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
    from torch.optim.swa_utils import AveragedModel


    def moved(averages, model):
        with torch.no_grad():
            for average, parameter in zip(averages, model.parameters()):
                average.lerp_(parameter, 0.5)


    class Averages:
        def __init__(self, model):
            self.by_name = {name: p.detach().clone() for name, p in model.named_parameters()}
            self.local = [p.detach().to_local().clone() for p in model.parameters()]


    def main():
        model = shard(Model())
        target = shard(Model()).requires_grad_(False)
        teacher = shard(Model()).requires_grad_(False)
        swa = AveragedModel(nn.Linear(8, 8))
        averages = Averages(model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        same = list(model.parameters())
        noise = [torch.randn(8, 8) for _ in same]  # of other shapes
        for step in range(3):
            before = [p.detach().clone() for p in model.parameters()]
            copied = get_model_state_dict(model, options=StateDictOptions(cpu_offload=True))
            train(model, optimizer)
            moved(averages.by_name.values(), model)
            moved(target.parameters(), model)
            with torch.no_grad():
                for average, p in zip(averages.local, model.parameters()):
                    average.mul_(0.9).add_(p.to_local(), alpha=0.1)
                for p in swa.parameters():
                    p.add_(1)
            noise = [n + 1 for n in noise]


    main()
"""


@pytest.mark.slow
def test_averages_and_other_models_are_found_and_copies_of_the_weights_are_not(tmp_path: Path) -> None:
    run = run_script(tmp_path, KEPT, figures=True)
    assert run.succeeded, run.ends[0].output
    for rank in range(2):
        _, *steps = figures(run, rank)
        names = {name for step in steps for name in step.beside}
        changing = {name for name in names if len({step.beside.get(name) for step in steps[1:]}) > 1}
        assert names == {"Model 2", "Model 3", "AveragedModel", "averages.by_name", "averages.local"}
        assert names - changing == {"Model 3"}
