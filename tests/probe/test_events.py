"""What the probe makes of a real run: the events of the vocabulary, with their fields."""

from __future__ import annotations

from pathlib import Path

import pytest
from pytorch_fsdp2_dcp.validate.events import (
    AsyncSaved,
    Attached,
    Awaited,
    Backward,
    Cast,
    CollectiveCalled,
    Compiled,
    DeviceSet,
    DirectoryRemoved,
    EntryRegistered,
    Event,
    Exited,
    ForwardBypassed,
    ForwardEntered,
    GradientsCleared,
    GradientsClipped,
    GradientSyncSet,
    GroupCreated,
    GroupDestroyed,
    GroupInitialised,
    Loaded,
    Location,
    Materialised,
    MeshCreated,
    ModuleBuilt,
    OptimizerBuilt,
    Parallelised,
    Precision,
    Saved,
    SchedulerBuilt,
    SchedulerStepped,
    Seeded,
    Sharded,
    SignalHandled,
    StateApplied,
    StateTaken,
    Stepped,
    TorchLoaded,
    TorchSaved,
    Via,
    WrapperApiUsed,
)

from ..runs import PREPARED, only, traces_of

EVERYTHING = """
    import shutil, signal
    from concurrent.futures import wait
    from torch.distributed.checkpoint.state_dict import (
        StateDictOptions, get_model_state_dict, get_state_dict, set_model_state_dict, set_state_dict
    )
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import register_fsdp_forward_method

    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("dp_shard",))
    group = dist.new_group(backend="gloo")
    signal.signal(signal.SIGTERM, lambda *_: None)
    with torch.device("meta"):
        model = Model()
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    model.to_empty(device="cpu")
    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.reset_parameters()
    register_fsdp_forward_method(model, "forward")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    model.set_requires_gradient_sync(True)
    loss = model(torch.randn(2, 8)).sum()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad()
    model_state, optimizer_state = get_state_dict(model, optimizer)
    state = {"model": model_state, "optimizer": optimizer_state, "scheduler": scheduler.state_dict()}
    dcp.save(state, checkpoint_id="one")
    future = dcp.async_save(state, checkpoint_id="two", process_group=group)
    future.result()
    dcp.load(state, checkpoint_id="two")
    set_state_dict(model, optimizer, model_state_dict=model_state, optim_state_dict=optimizer_state)
    scheduler.load_state_dict(state["scheduler"])
    full = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if rank == 0:
        torch.save(full, "full.pt")
        torch.load("full.pt")
        shutil.rmtree("one")
    dist.barrier()
    dist.destroy_process_group()
"""


def test_every_event_of_a_whole_program_is_seen_in_order_with_its_place(tmp_path: Path) -> None:
    rank0, rank1 = traces_of(tmp_path, EVERYTHING)
    seen = [type(e) for e in rank0.events if not isinstance(e, ModuleBuilt)]
    assert seen == [
        GroupInitialised, Seeded, MeshCreated, GroupCreated, SignalHandled, Sharded, Sharded, Sharded, Materialised,
        EntryRegistered, OptimizerBuilt, SchedulerBuilt, GradientSyncSet, ForwardEntered, Backward, GradientsClipped,
        Stepped, SchedulerStepped, GradientsCleared, StateTaken, StateTaken, StateTaken, Saved, AsyncSaved, Awaited,
        Loaded, StateApplied, StateApplied, StateApplied, StateTaken, TorchSaved, TorchLoaded, DirectoryRemoved,
        CollectiveCalled, GroupDestroyed, Exited,
    ]  # fmt: skip
    assert rank0.ended
    assert rank1.ended
    assert (rank0.origin, rank0.ranks) == ("probe", 2)
    assert all(e.when.rank == 1 and e.when.finished and e.when.only is None for e in rank1.events)

    sharded = list(rank0.of(Sharded))
    model = sharded[-1].module
    assert [s.module.name for s in sharded] == ["model.blocks.0", "model.blocks.1", "model"]
    assert [s.blocks for s in sharded] == [False, False, True]
    assert all(s.mesh == only(rank0, MeshCreated).mesh for s in sharded)
    assert rank0.inside(sharded[0].module, model)
    mesh = only(rank0, MeshCreated)
    assert (mesh.device_type, mesh.shape, mesh.dims) == ("cpu", (2,), ("dp_shard",))
    built = [b for b in rank0.of(ModuleBuilt) if b.module == model]
    assert [(b.cls, b.meta) for b in built] == [("Model", True)]
    assert only(rank0, Materialised).module == model
    optimizer = only(rank0, OptimizerBuilt)
    assert (optimizer.cls, optimizer.modules, optimizer.stateless) == ("AdamW", (model,), False)
    assert only(rank0, SchedulerBuilt).optimizer == optimizer.optimizer
    forward = only(rank0, ForwardEntered)
    assert (forward.module, forward.sharded, forward.uncovered) == (model, True, ())
    assert only(rank0, GradientsClipped).modules == (model,)
    assert only(rank0, GradientsClipped).sharded
    assert only(rank0, GradientsCleared).of == optimizer.optimizer

    model_taken, optimizer_taken, scheduler_taken, full = rank0.of(StateTaken)
    assert [t.via for t in rank0.of(StateTaken)] == [Via.HELPER, Via.HELPER, Via.METHOD, Via.HELPER]
    assert (model_taken.of, optimizer_taken.of) == ((model,), (optimizer.optimizer,))
    assert (full.full, full.offload, full.collective) == (True, True, True)
    applied = list(rank0.of(StateApplied))
    assert [a.state for a in applied] == [model_taken.state, optimizer_taken.state, scheduler_taken.state]
    assert only(rank0, Saved).target == "one"
    assert only(rank0, Saved).when.step == 1
    saved = only(rank0, AsyncSaved)
    assert saved.group == only(rank0, GroupCreated).group
    assert only(rank0, Awaited).future == saved.future
    assert only(rank0, TorchSaved).target == only(rank0, TorchLoaded).target == "full.pt"
    assert only(rank0, DirectoryRemoved).target == "one"
    assert only(rank0, Exited).code == 0

    lines = (PREPARED + "\n").splitlines()
    assert only(rank0, GroupInitialised).at == Location("script.py", lines.index('dist.init_process_group("gloo")') + 1)
    script = (tmp_path / "cwd" / "script.py").read_text().splitlines()
    for event, words in (
        (Stepped, "optimizer.step()"),
        (Saved, 'checkpoint_id="one"'),
        (ForwardEntered, "loss = model("),
    ):
        assert words in script[only(rank0, event).at.line - 1]


@pytest.mark.slow
def test_helpers_that_let_a_fresh_optimizer_step_take_no_step_of_the_programs(tmp_path: Path) -> None:
    script = """
        from torch.distributed.checkpoint.state_dict import get_state_dict
        model = shard(Model())
        optimizer = torch.optim.AdamW(model.parameters())
        get_state_dict(model, optimizer)
        train(model, optimizer)
    """
    trace = traces_of(tmp_path, script, nproc=1, figures=True, stop_after=2)[0]
    assert only(trace, Stepped).when.step == 0
    assert [type(e) for e in trace.of(GradientsCleared)] == [GradientsCleared]


def test_collectives_that_torch_makes_itself_are_no_events_but_the_programs_are(tmp_path: Path) -> None:
    script = """
        model = shard(Model())
        train(model, torch.optim.SGD(model.parameters(), lr=0.1))
        def reduce(): dist.all_reduce(torch.ones(1))
        reduce()
        model.embed.weight.full_tensor()
        dist.broadcast_object_list([1], 0)
        pair = dist.new_group([0])
        if rank == 0:
            dist.barrier(pair)
    """
    first, second = traces_of(tmp_path, script)
    assert [e.op for e in first.of(CollectiveCalled)] == [
        "all_reduce",
        "full_tensor",
        "broadcast_object_list",
        "barrier",
        "barrier",
    ]
    assert [e.when.only for trace in (first, second) for e in trace.events if e.when.only] == [], "the group is [0]"
    assert only(first, OptimizerBuilt).stateless


FORWARDS = {
    "called": ("model(x)", [], ["model"]),
    "by name": ("model.forward(x)", ["model"], []),
    "block by name": ("model.embed_only(x)", ["model"], []),
    "registered": ("register_fsdp_forward_method(model, 'embed_only'); model.embed_only(x)", [], ["model"]),
    "inside": ("Outer(model)(x)", [], ["outer"]),
    "recomputed": ("checkpoint(model.blocks[0], model(x), use_reentrant=False).sum().backward()", [], ["model"]),
    "gathered by hand": ("[m.unshard() for m in (model, *model.blocks)]; model.forward(x)", [], []),
    "compiled": ("model.compile(backend='eager'); model(x); model(x)", [], None),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", [c if n < 3 else pytest.param(c, marks=pytest.mark.slow) for n, c in enumerate(FORWARDS)]
)
def test_forward_bypassed_is_told_where_hooks_are_skipped_and_nowhere_else(case: str, tmp_path: Path) -> None:
    call, bypassed, entered = FORWARDS[case]
    script = f"""
        import contextlib
        from torch.distributed.fsdp import register_fsdp_forward_method
        from torch.utils.checkpoint import checkpoint

        class Own(Model):
            def embed_only(self, x):
                return self.forward(x)

        class Outer(nn.Module):
            def __init__(self, inner):
                super().__init__()
                self.inner = inner

            def forward(self, x):
                return self.inner(x)

        model = shard(Own())
        x = torch.randn(2, 8)
        with contextlib.suppress(RuntimeError):
            {call}
        outer = None
    """
    trace = traces_of(tmp_path, script, nproc=1)[0]
    assert [e.module.name for e in trace.of(ForwardBypassed)] == bypassed
    if entered is not None:
        names = [e.module.name.lower() for e in trace.of(ForwardEntered)]
        assert names == (entered if case != "recomputed" else ["model"])
    if case == "compiled":
        assert only(trace, Compiled).module.name == "model"


@pytest.mark.slow
def test_parameters_outside_every_group_are_named_and_the_unsharded_root_is_entered_once_a_call(tmp_path: Path) -> None:
    script = """
        model = Model()
        for block in model.blocks:
            fully_shard(block)
        for _ in range(2):
            model(torch.randn(2, 8)).sum().backward()
        with torch.no_grad():
            model(torch.randn(2, 8))
            model(torch.randn(2, 8))
    """
    trace = traces_of(tmp_path, script, nproc=1)[0]
    entered = list(trace.of(ForwardEntered))
    assert [e.module.name for e in entered] == ["model"] * 4
    assert all(e.sharded for e in entered)
    assert [e.uncovered for e in entered] == [("embed.weight", "embed.bias"), None, None, None]


@pytest.mark.slow
def test_a_sequence_of_composite_blocks_is_recognised_before_and_after_they_are_sharded(tmp_path: Path) -> None:
    script = """
        root_only = Model()
        fully_shard(root_only)
        shard(Model())
    """
    trace = traces_of(tmp_path, script, nproc=1)[0]
    assert [s.blocks for s in trace.of(Sharded)] == [True, False, False, True]


@pytest.mark.slow
def test_an_optimizer_of_dead_parameters_still_names_their_module(tmp_path: Path) -> None:
    script = """
        model = Model()
        dead = list(model.parameters())
        shard(model)
        torch.optim.AdamW(dead)
        torch.optim.AdamW(model.blocks[0].parameters())
        torch.optim.AdamW([{"params": [p for p in model.parameters() if p.dim() == d]} for d in (1, 2)])
    """
    trace = traces_of(tmp_path, script, nproc=1)[0]
    model = next(b.module for b in trace.of(ModuleBuilt) if b.cls == "Model")
    former, block, whole = (o.modules for o in trace.of(OptimizerBuilt))
    assert former
    assert all(trace.inside(m, model) for m in former)
    assert [m.name for m in block] == ["model.blocks.0"]
    assert whole == (model,)


@pytest.mark.slow
def test_a_device_that_is_set_is_seen(tmp_path: Path) -> None:
    script = """
        import contextlib
        with contextlib.suppress(Exception):
            torch.cuda.set_device(0)
    """
    assert isinstance(only(traces_of(tmp_path, script, nproc=1)[0], DeviceSet), Event)


@pytest.mark.slow
def test_what_is_done_to_a_sharded_model_is_seen(tmp_path: Path) -> None:
    script = """
        import contextlib
        from torch.distributed.fsdp import FullyShardedDataParallel, StateDictType
        model = shard(Model())
        model.to("cpu")
        model.to(dtype=torch.float64).half()
        model.head = nn.Linear(8, 8)
        model.other = nn.ReLU()
        torch.optim.AdamW(model.blocks.parameters())
        torch.optim.AdamW(model.parameters())
        with contextlib.suppress(KeyError):
            FullyShardedDataParallel.set_state_dict_type(model, StateDictType.FULL_STATE_DICT)
    """
    trace = traces_of(tmp_path, script, nproc=1)[0]
    assert [(c.module.name, c.dtype) for c in trace.of(Cast)] == [("model", "float64"), ("model", "float16")]
    attached = only(trace, Attached)
    assert (attached.module.name, attached.to.name) == ("model.head", "model")
    assert attached.parameters == ("weight", "bias")
    assert [o.dtype for o in trace.of(OptimizerBuilt)] == ["float16", None]
    assert only(trace, WrapperApiUsed).name == "FullyShardedDataParallel.set_state_dict_type"


@pytest.mark.slow
def test_how_a_model_is_sharded_is_seen(tmp_path: Path) -> None:
    script = """
        import contextlib
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import MixedPrecisionPolicy
        from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
        mesh = init_device_mesh("cpu", (1, 1, 1), mesh_dim_names=("r", "s", "t"))
        model = Model()
        parallelize_module(model, mesh["t"], {"embed": ColwiseParallel()})
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        with contextlib.suppress(ValueError):
            fully_shard(model.blocks)
        fully_shard(model, mesh=mesh["r", "s"], mp_policy=policy)
    """
    trace = traces_of(tmp_path, script, nproc=1)[0]
    applied, mesh = only(trace, Parallelised), only(trace, MeshCreated).mesh
    assert (applied.module.name, applied.root, applied.mesh == mesh) == ("model", mesh, False)
    blocks, root = trace.of(Sharded)
    assert (blocks.root, blocks.everyone) == (None, True)
    assert (root.root, root.mesh == mesh, root.everyone) == (mesh, False, False)
    assert (blocks.container, blocks.mesh_dims, blocks.precision) == (True, None, Precision())
    assert (root.container, root.mesh_dims) == (False, ("r", "s"))
    assert root.precision == Precision(param="bfloat16", reduce="float32")
