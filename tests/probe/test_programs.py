"""Programs that do what programs do: the probe neither holds on to their tensors, nor loses its place in them."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from pytorch_fsdp2_dcp.validate.events import ForwardEntered, OptimizerBuilt, Sharded, Stepped

from ..runs import run_script, traces_of

HOLDS_NOTHING = """
    import gc
    import weakref

    model = shard(Model())
    optimizer = torch.optim.AdamW(model.parameters())
    average = [p.detach().clone() for p in model.parameters()]
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(6, 8)), batch_size=2)
    gone = []
    for (batch,) in data:
        output = model(batch)
        loss = output.pow(2).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        average = [a.lerp(p.detach(), 0.5) for a, p in zip(average, model.parameters())]
        gone += [weakref.ref(t) for t in (batch, output, loss, *average, *(p.grad for p in model.parameters()))]
        optimizer.zero_grad()
    model(torch.randn(2, 8)).sum().backward()  # so that nothing of the last step is the latest any more
    optimizer.step()
    optimizer.zero_grad()
    del batch, output, loss, average
    gc.collect()
    print("held:", [tuple(t.shape) for ref in gone if (t := ref()) is not None])
"""


@pytest.mark.slow
def test_no_tensor_is_held_beyond_its_step(tmp_path: Path) -> None:
    run = run_script(tmp_path, HOLDS_NOTHING, figures=True, whole_after=2)
    assert run.succeeded, run.ends[0].output
    assert [end.output.splitlines()[-1] for end in run.ends] == ["held: []"] * 2


MAIN = """
    import argparse
    import os
    import threading

    import torch
    import torch.distributed as dist
    from project.parts import sharded


    def main():
        parser = argparse.ArgumentParser()
        parser.add_argument("--steps", type=int, required=True)
        steps = parser.parse_args().steps
        dist.init_process_group("gloo")
        os.makedirs("elsewhere", exist_ok=True)
        os.chdir("elsewhere")
        model = sharded()
        optimizer = torch.optim.AdamW(model.parameters())
        for step in range(steps):
            loss = []
            thread = threading.Thread(target=lambda: loss.append(model(torch.full((2, 8), float(step))).pow(2).mean()))
            thread.start()
            thread.join()
            print("x" * 2**20)
            loss[0].backward()
            optimizer.step()
            optimizer.zero_grad()
        dist.barrier()
        dist.destroy_process_group()
        os._exit(0)


    if __name__ == "__main__":
        main()
"""
PARTS = """
    from torch.distributed.fsdp import fully_shard

    from .net import Net


    def sharded():
        return fully_shard(Net())
"""
NET = """
    from torch import nn


    class Net(nn.Linear):
        def __init__(self):
            super().__init__(8, 8)
"""


@pytest.mark.slow
def test_a_program_in_parts_that_moves_prints_threads_and_leaves_by_itself_is_followed(tmp_path: Path) -> None:
    project = tmp_path / "cwd" / "project"
    project.mkdir(parents=True)
    for name, text in (("__init__", ""), ("parts", PARTS), ("net", NET)):
        (project / f"{name}.py").write_text(textwrap.dedent(text))
    for trace in traces_of(tmp_path, MAIN, prepared=False, args=("--steps", "3"), figures=True):
        assert [event.at.file for event in trace.of(Sharded)] == ["project/parts.py"]
        assert [event.at.file for event in trace.of(OptimizerBuilt, Stepped)] == ["script.py"] * 4
        assert [event.when.main_thread for event in trace.of(ForwardEntered)] == [False] * 3


CONFIGURED = """
    import hydra
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.fsdp import fully_shard


    @hydra.main(version_base=None, config_path=".", config_name="config")
    def main(config):
        dist.init_process_group("gloo")
        model = fully_shard(nn.Linear(8, 8))
        optimizer = torch.optim.SGD(model.parameters(), lr=config.lr)
        for _ in range(config.steps):
            model(torch.ones(2, 8)).sum().backward()
            optimizer.step()
        dist.barrier()
        dist.destroy_process_group()


    if __name__ == "__main__":
        main()
"""


@pytest.mark.slow
def test_a_program_that_hydra_starts_is_followed(tmp_path: Path) -> None:
    pytest.importorskip("hydra")
    (tmp_path / "cwd").mkdir()
    (tmp_path / "cwd" / "config.yaml").write_text("lr: 0.1\nsteps: 9\n")
    for trace in traces_of(tmp_path, CONFIGURED, prepared=False, args=("steps=2",), figures=True):
        assert [event.at.file for event in trace.of(Sharded, Stepped)] == ["script.py"] * 3
