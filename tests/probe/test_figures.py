"""The figures of a run: that they are right, that taking them changes nothing, and that a run ends where asked."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from pytorch_fsdp2_dcp.validate.events import AsyncSaved, Backward, ForwardEntered, OptimizerBuilt, Stepped
from pytorch_fsdp2_dcp.validate.probe.figures import figures
from pytorch_fsdp2_dcp.validate.probe.merge import merge

from ..runs import run_script

TOLD = """
    import zlib
    model = shard(Model())
    model.register_buffer("seen", torch.zeros(()))
    model.register_buffer("scratch", torch.zeros(()), persistent=False)
    for block in model.blocks:
        block.register_forward_hook(lambda m, i, o: torch.nn.functional.dropout(o, 0.1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    for step in range(3):
        for part in range(2):
            loss = model(torch.randn(2, 8)).pow(2).mean() / 2
            loss.backward()
            print("loss", repr(loss.item()))
        norm = sum(p.grad.to_local().double().square().sum().item() for p in model.parameters())
        print("norm", repr(norm))
        optimizer.step()
        model.seen = model.seen + 1
        print("lr", repr(scheduler.get_last_lr()[0]))
        scheduler.step()
        optimizer.zero_grad()
    for name, p in model.named_parameters():
        local = p.to_local().detach().contiguous()
        print("param", name, zlib.crc32(local.numpy().tobytes()))
        print("state", name, zlib.crc32(optimizer.state[p]["exp_avg"].to_local().contiguous().numpy().tobytes()))
    print("rng", zlib.crc32(torch.get_rng_state().numpy().tobytes()))
"""


def words(output: str, word: str) -> list[list[str]]:
    return [line.split()[1:] for line in output.splitlines() if line.startswith(word + " ")]


def test_figures_are_what_the_script_itself_computes(tmp_path: Path) -> None:
    run = run_script(tmp_path, TOLD, figures=True)
    assert run.succeeded, run.ends[0].output
    for rank, end in enumerate(run.ends):
        found = figures(run, rank)
        assert [f.step for f in found] == [0, 1, 2, 3]
        assert (found[0].losses, found[0].optimizer) == ([], {})
        assert [repr(loss) for f in found for loss in f.losses] == [w[0] for w in words(end.output, "loss")]
        assert [f.grad_norm_sq for f in found[1:]] == pytest.approx([float(w[0]) for w in words(end.output, "norm")])
        assert [repr(f.lrs[0]) for f in found[1:]] == [w[0] for w in words(end.output, "lr")]
        assert [set(f.buffers) for f in found] == [{"seen"}] * 4
        assert len({f.buffers["seen"] for f in found}) == 3, "each step's but the first is taken when it has just ended"
        assert found[-1].params == {name: int(crc) for name, crc in words(end.output, "param")}
        for name, crc in words(end.output, "state"):
            assert found[-1].optimizer[f"{name}.exp_avg"] == int(crc)
        assert found[-1].rng == int(words(end.output, "rng")[0][0])


def test_the_probe_changes_no_number(tmp_path: Path) -> None:
    """The same script in a plain Python process, to the last bit, generator included."""
    run = run_script(tmp_path, TOLD, nproc=1, figures=True)
    script = tmp_path / "cwd" / "script.py"
    alone = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "0"}
    plain = subprocess.run(
        [sys.executable, str(script)], env={**os.environ, **alone, "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert run.ends[0].output == plain.stdout + plain.stderr


def test_a_run_ends_by_sigkill_on_every_rank_once_the_steps_are_done_and_saves_are_through(tmp_path: Path) -> None:
    script = """
        import signal, time
        from torch.distributed.checkpoint import FileSystemWriter

        class Slow(FileSystemWriter):
            def write_data(self, plan, planner):
                time.sleep(0.5 * rank)
                return super().write_data(plan, planner)

        signal.signal(signal.SIGTERM, lambda *_: print("terminated"))
        model = shard(Model())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        group = dist.new_group(backend="gloo")
        for step in range(10):
            train(model, optimizer)
            if step == 1:
                dcp.async_save({"model": model.state_dict()}, storage_writer=Slow("one"), process_group=group)
    """
    run = run_script(tmp_path, script, stop_after=3)
    assert [end.code for end in run.ends] == [-signal.SIGKILL] * 2, [e.output for e in run.ends]
    assert all("terminated" not in end.output for end in run.ends)
    assert (tmp_path / "cwd" / "one" / ".metadata").exists()
    for trace in merge(run):
        assert len(list(trace.of(Stepped))) == 3
        assert len(list(trace.of(AsyncSaved))) == 1
        assert not trace.ended


@pytest.mark.slow
def test_parameters_whose_memory_fsdp_has_freed_are_left_alone(tmp_path: Path) -> None:
    """An optimizer over gathered parameters holds tensors that have no storage any more: reading one is a crash."""
    script = """
        model = shard(Model())
        with torch.no_grad():
            model(torch.randn(2, 8))
        optimizer = torch.optim.AdamW(model.parameters())  # the root is gathered now
        for module in (model, *model.blocks):
            module.reshard()
        for _ in range(2):
            model(torch.randn(2, 8)).sum().backward()
            optimizer.step()
        print("through")
    """
    run = run_script(tmp_path, script, figures=True)
    assert [(end.code, end.output) for end in run.ends] == [(0, "through\n")] * 2
    trace = merge(run)[0]
    assert trace.notes == ()
    assert [b.modules[0].name for b in trace.of(OptimizerBuilt)] == ["model"]
    assert set(figures(run, 0)[-1].params) == {
        f"blocks.{n}.{part}.{kind}" for n in (0, 1) for part in ("up", "down") for kind in ("weight", "bias")
    }


@pytest.mark.slow
def test_two_optimizers_are_one_count_and_both_are_digested(tmp_path: Path) -> None:
    script = """
        model, other = shard(Model()), shard(Model())
        optimizers = [torch.optim.AdamW(m.parameters(), lr=lr) for m, lr in ((model, 0.1), (other, 0.2))]
        for _ in range(2):
            for m, optimizer in zip((model, other), optimizers):
                train(m, optimizer)
    """
    run = run_script(tmp_path, script, nproc=1, figures=True)
    found = figures(run, 0)
    assert [f.step for f in found] == [0, 1, 2]
    assert found[-1].lrs == [0.1, 0.2]
    assert len(found[-1].params) == 20


@pytest.mark.slow
def test_without_figures_none_are_written_but_steps_are_counted(tmp_path: Path) -> None:
    script = """
        model = shard(Model())
        train(model, torch.optim.SGD(model.parameters(), lr=0.1), steps=2)
    """
    run = run_script(tmp_path, script, nproc=1)
    assert figures(run, 0) == []
    (trace,) = merge(run)
    assert [e.when.step for e in trace.of(ForwardEntered)] == [0, 1]
    assert [e.when.step for e in trace.of(Backward)] == [0, 1]
