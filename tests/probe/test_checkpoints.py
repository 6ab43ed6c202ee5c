"""What the probe sees in the dictionaries that are saved and loaded, and of the futures of asynchronous saves."""

from __future__ import annotations

from pathlib import Path

import pytest
from pytorch_fsdp2_dcp.validate.events import (
    AsyncSaved,
    Awaited,
    Entry,
    Form,
    Kind,
    Loaded,
    Saved,
    StateApplied,
    StateTaken,
    TorchSaved,
    Via,
)
from pytorch_fsdp2_dcp.validate.probe.merge import merge

from ..runs import only, run_script, traces_of

TRAINED = """
    from torch.distributed.checkpoint.state_dict import (
        StateDictOptions, get_model_state_dict, get_optimizer_state_dict, get_state_dict
    )
    from torch.distributed.tensor import DTensor
    model = shard(Model())
    optimizer = torch.optim.AdamW(model.parameters())
    train(model, optimizer)
"""


def entries(event: Saved | AsyncSaved | Loaded | TorchSaved) -> dict[str, Entry]:
    assert event.entries is not None
    return {entry.key: entry for entry in event.entries}


def test_each_way_of_putting_state_into_a_save_is_recognised(tmp_path: Path) -> None:
    script = (
        TRAINED
        + """
    class TrainState:
        def __init__(self): self.step = 3
        def state_dict(self):
            model_state, optimizer_state = get_state_dict(model, optimizer)
            return {"model": model_state, "optimizer": optimizer_state, "step": self.step}
        def load_state_dict(self, state): self.step = state["step"]

    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    full = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    dcp.save({
        "object": model,
        "optimizer": optimizer,
        "method": model.state_dict(),
        "helper": get_model_state_dict(model),
        "indexed": optimizer.state_dict(),
        "full": full,
        "renamed": {key: value for key, value in full.items()},
        "local": {key: value.to_local() for key, value in model.state_dict().items()},
        "scheduler": scheduler,
        "train": TrainState(),
        "nested": {"model": get_model_state_dict(model), "epoch": 1},
        "rng": torch.get_rng_state(),
        "lr": 0.5,
    }, checkpoint_id="one")
    """
    )
    first, _ = traces_of(tmp_path, script)
    found = entries(only(first, Saved))
    brief = {key: (e.kind, e.form, e.via, e.aliased) for key, e in found.items()}
    sharded, full, plain, unknown = Form.SHARDED, Form.FULL, Form.PLAIN, Form.UNKNOWN
    assert brief == {
        "object": (Kind.MODEL, sharded, Via.OBJECT, True),
        "optimizer": (Kind.OPTIMIZER, sharded, Via.OBJECT, True),
        "method": (Kind.MODEL, sharded, Via.METHOD, True),
        "helper": (Kind.MODEL, sharded, Via.HELPER, True),
        "indexed": (Kind.OPTIMIZER, sharded, Via.METHOD, True),
        "full": (Kind.MODEL, full, Via.HELPER, False),
        "renamed": (Kind.MODEL, full, Via.VALUE, False),
        "local": (Kind.MODEL, Form.LOCAL, Via.VALUE, True),
        "scheduler": (Kind.SCHEDULER, unknown, Via.OBJECT, None),
        "train.model": (Kind.MODEL, sharded, Via.HELPER, True),
        "train.optimizer": (Kind.OPTIMIZER, sharded, Via.HELPER, True),
        "train.step": (Kind.VALUE, plain, Via.VALUE, None),
        "nested.model": (Kind.MODEL, sharded, Via.HELPER, True),
        "nested.epoch": (Kind.VALUE, plain, Via.VALUE, None),
        "rng": (Kind.RNG, plain, Via.VALUE, None),
        "lr": (Kind.VALUE, plain, Via.VALUE, None),
    }
    models = [e.of for e in found.values() if e.kind is Kind.MODEL]
    assert len({ref.id for ref in models if ref is not None}) == 1
    assert None not in models
    assert {e.of.name for e in found.values() if e.kind is Kind.OPTIMIZER and e.of is not None} == {"optimizer"}


@pytest.mark.slow
def test_a_value_that_differs_from_rank_to_rank_under_one_key_is_told(tmp_path: Path) -> None:
    script = """
        torch.manual_seed(rank)
        dcp.save({
            "rng": torch.get_rng_state(), "position": rank, "step": 7, "metric": 0.5 + rank,
            f"own-{rank}": rank, "deep": {"seen": [1, rank]},
        }, checkpoint_id="one")
    """
    first, second = traces_of(tmp_path, script)
    told = {key: entry.per_rank for key, entry in entries(only(first, Saved)).items()}
    assert told == {"rng": True, "position": True, "step": False, "metric": None, "own-0": False, "deep.seen": True}
    assert entries(only(second, Saved))["rng"].per_rank is True


@pytest.mark.slow
def test_what_wrappers_put_into_names_is_told(tmp_path: Path) -> None:
    script = """
        from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
        from torch.distributed.checkpoint.state_dict import get_model_state_dict
        compiled, inside = Model(), Model()
        for i in range(2):
            compiled.blocks[i] = torch.compile(checkpoint_wrapper(compiled.blocks[i]))
            inside.blocks[i] = checkpoint_wrapper(torch.compile(inside.blocks[i]))
        shard(compiled), shard(inside)
        dcp.save({
            "method": compiled.state_dict(), "object": compiled, "helper": get_model_state_dict(compiled),
            "inside": get_model_state_dict(inside),
        }, checkpoint_id="one")
    """
    first, _ = traces_of(tmp_path, script)
    told = {key: entry.prefix for key, entry in entries(only(first, Saved)).items()}
    assert told == {"method": "_orig_mod.", "object": "_orig_mod.", "helper": None, "inside": "_orig_mod."}


def test_a_load_shows_what_is_requested_and_into_what(tmp_path: Path) -> None:
    script = (
        TRAINED
        + """
    dcp.save({"model": model, "optimizer": optimizer, "step": 1}, checkpoint_id="one")
    fresh = shard(Model())
    other = torch.optim.AdamW(fresh.parameters())
    dcp.load({"model": fresh, "optimizer": other}, checkpoint_id="one")
    state = fresh.state_dict()
    dcp.load(state := {"model": state}, checkpoint_id="one")
    fresh.load_state_dict(state["model"])
    """
    )
    first, _ = traces_of(tmp_path, script)
    lazy, plain = first.of(Loaded)
    assert {e.key: (e.form, e.via) for e in lazy.entries or ()} == {
        "model": (Form.SHARDED, Via.OBJECT),
        "optimizer": (Form.UNKNOWN, Via.OBJECT),  # no tensors in it: it asks for nothing
    }
    assert entries(plain)["model"].of == entries(lazy)["model"].of
    assert plain.state is not None
    assert lazy.state != plain.state


@pytest.mark.slow
def test_a_flat_state_dict_is_one_entry_and_torch_save_is_looked_into(tmp_path: Path) -> None:
    script = (
        TRAINED
        + """
    dcp.save(model.state_dict(), checkpoint_id="one")
    if rank == 0:
        torch.save({"model": model.state_dict(), "step": 1}, "a.pt")
        torch.save(get_model_state_dict(model), open("b.pt", "wb"))
        torch.save([1], "c.pt")
    """
    )
    first, _ = traces_of(tmp_path, script)
    assert {e.key: (e.kind, e.form) for e in only(first, Saved).entries or ()} == {"": (Kind.MODEL, Form.SHARDED)}
    nested, flat, other = first.of(TorchSaved)
    assert entries(nested)["model"].form is Form.SHARDED
    assert (flat.target, entries(flat)[""].form) == ("b.pt", Form.SHARDED)
    assert entries(other)[""].kind is Kind.VALUE


@pytest.mark.slow
def test_futures_are_followed_however_the_program_learns_of_their_end(tmp_path: Path) -> None:
    script = (
        TRAINED
        + """
    import concurrent.futures, time
    group = dist.new_group(backend="gloo")
    state = {"model": get_model_state_dict(model)}
    def save(name): return dcp.async_save(state, checkpoint_id=name, process_group=group)
    save("result").result()
    save("exception").exception()
    concurrent.futures.wait([save("wait")])
    polled = save("done")
    while not polled.done(): time.sleep(0.01)
    unawaited = save("never")
    concurrent.futures.Future().cancel()
    time.sleep(1.0)
    dist.barrier()
    """
    )
    first, _ = traces_of(tmp_path, script)
    saved = {e.target: e.future for e in first.of(AsyncSaved)}
    awaited = [e.future for e in first.of(Awaited)]
    assert awaited == [saved[name] for name in ("result", "exception", "wait", "done")]


@pytest.mark.slow
def test_a_process_based_save_with_a_stager_is_followed(tmp_path: Path) -> None:
    script = """
        import os
        import torch
        import torch.distributed as dist
        import torch.distributed.checkpoint as dcp
        from torch import nn
        from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
        from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType
        from torch.distributed.fsdp import fully_shard

        def main():
            dist.init_process_group("gloo")
            model = fully_shard(nn.Linear(4, 4))
            stager = DefaultStager(StagingOptions(False, False, True, False))
            response = dcp.async_save(
                {"model": model}, checkpoint_id="one", async_stager=stager,
                async_checkpointer_type=AsyncCheckpointerType.PROCESS,
            )
            response.staging_completion.result()
            response.upload_completion.result()
            stager.close()
            dist.barrier()
            dist.destroy_process_group()

        if __name__ == "__main__":
            main()
    """
    first, _ = traces_of(tmp_path, script, prepared=False, deadline=120)
    saved = only(first, AsyncSaved)
    assert [awaited.future for awaited in first.of(Awaited)] == [saved.staging, saved.future]
    assert (tmp_path / "cwd" / "one" / ".metadata").exists()


@pytest.mark.slow
def test_a_save_that_fails_before_it_begins_is_still_an_event(tmp_path: Path) -> None:
    run = run_script(tmp_path, "dcp.save({'a': 1})\n", nproc=1)
    (trace,) = merge(run)
    assert only(trace, Saved).target is None
    assert not only(trace, Saved).when.finished
    assert run.ends[0].code == 1
    assert not trace.ended


@pytest.mark.slow
def test_a_checkpoint_exception_that_nothing_catches_is_the_error_of_the_rank(tmp_path: Path) -> None:
    run = run_script(
        tmp_path, "try:\n    dcp.load({'a': 1}, checkpoint_id='gone')\nexcept Exception:\n    pass\n", nproc=1
    )
    assert run.ends[0].error is not None
    assert run.ends[0].error.startswith("CheckpointException: ")


@pytest.mark.slow
def test_state_is_asked_for_once_by_dcp_and_never_by_the_probe(tmp_path: Path) -> None:
    script = """
        class Counted:
            def __init__(self): self.asked = 0
            def state_dict(self):
                self.asked += 1
                return {"asked": self.asked, "model": model.state_dict()}
            def load_state_dict(self, state): pass
        model = shard(Model())
        counted = Counted()
        dcp.save({"counted": counted}, checkpoint_id="one")
        assert counted.asked == 1, counted.asked
    """
    trace = traces_of(tmp_path, script, nproc=1)[0]
    taken, saved = only(trace, StateTaken), only(trace, Saved)
    assert taken.order < saved.order
    assert entries(saved)["counted.model"].of == taken.of[0]


@pytest.mark.slow
def test_how_state_is_given_and_checkpoints_are_named_is_told(tmp_path: Path) -> None:
    script = (
        TRAINED
        + """
    from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
    from torch.distributed.checkpoint.state_dict import set_model_state_dict
    sharded = model.state_dict()
    full = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    model.load_state_dict(sharded)
    model.load_state_dict({"other": torch.zeros(1)}, strict=False)
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(model, full if rank == 0 else {}, options=options)
    dcp.save({"step": 1}, checkpoint_id="one")
    dcp.load({"step": 0, "more": 0}, checkpoint_id="one", planner=DefaultLoadPlanner(allow_partial_load=True))
    try:
        dcp.load({"step": 0})
    except RuntimeError:
        pass
    """
    )
    traces = traces_of(tmp_path, script)
    for rank, trace in enumerate(traces):
        told = [(e.via, e.form, e.full, e.broadcast, e.strict, e.empty, e.missed) for e in trace.of(StateApplied)]
        given = Form.FULL if rank == 0 else Form.UNKNOWN
        assert told == [
            (Via.METHOD, Form.SHARDED, False, False, True, False, None),
            (Via.METHOD, Form.UNKNOWN, False, False, False, False, True),
            (Via.HELPER, given, True, True, True, rank == 1, None),
        ]
        assert [(e.located, e.partial) for e in trace.of(Loaded)] == [(True, True), (False, False)]
