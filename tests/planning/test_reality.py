"""What is planned is what real runs on 2 and 4 ranks have: bytes of tensors, of the allocator, and on the disk."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
from pytorch_fsdp2_dcp.validate.planning.mesh import resolve_mesh

from ..commands import fsdp2, fsdp2_json
from ..runs import run_script
from ..templates.training import ANY_MODEL, TEXT, Training, write_script

NET = Path(__file__).with_name("net.py")

RUN = """
    import json, sys
    from functools import partial

    from net import VOCABULARY, Block, build, split
    from torch.distributed.checkpoint.state_dict import get_state_dict
    from torch.distributed.fsdp import MixedPrecisionPolicy
    from torch.profiler import ProfilerActivity, profile
    from torch.utils.checkpoint import checkpoint

    micro_batches, (mesh, precision, checkpointing, optimizer_name) = int(sys.argv[1]), sys.argv[2:]
    sizes = {dim: int(size) for dim, _, size in (part.partition("=") for part in mesh.split(","))}
    ranks = dist.init_device_mesh("cpu", tuple(sizes.values()), mesh_dim_names=tuple(sizes))
    policy = {"mesh": ranks[tuple(dim for dim in sizes if dim != "tp")]}
    if precision == "bf16":
        policy["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    model = build()
    if "tp" in sizes:
        split(model, ranks["tp"])
    for block in model.blocks:
        if checkpointing == "full":
            block.forward = partial(checkpoint, block.forward, use_reentrant=False)
        fully_shard(block, **policy)
    fully_shard(model, **policy)
    if optimizer_name == "adamw":
        optimizer = torch.optim.AdamW(model.parameters())
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)

    def local_bytes(tensors):
        locals = [tensor.to_local() if hasattr(tensor, "to_local") else tensor for tensor in tensors]
        return sum(tensor.numel() * tensor.element_size() for tensor in locals)

    def allocated(prof):  # by the allocator itself: what is left at the end, and the most at any time
        events = [event for event in prof.profiler.kineto_results.events() if event.name() == "[memory]"]
        total = most = 0
        for event in sorted(events, key=lambda event: event.start_ns()):
            total += event.nbytes()
            most = max(most, total)
        return total, most

    def forward():
        tokens = torch.randint(0, VOCABULARY, (4, 65))
        logits = model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())
        return logits, loss

    def profiled():
        return profile(activities=[ProfilerActivity.CPU], profile_memory=True)

    def step():
        for index in range(micro_batches):
            model.set_requires_gradient_sync(index == micro_batches - 1)
            logits, loss = forward()
            loss.backward()
        for mesh in {parameter.device_mesh for parameter in model.parameters()}:
            nn.utils.clip_grad_norm_([p for p in model.parameters() if p.device_mesh == mesh], 1.0)
        optimizer.step()

    step()
    found = {
        "parameters": local_bytes(model.parameters()),
        "gradients": local_bytes(parameter.grad for parameter in model.parameters()),
        "optimizer": local_bytes(value for state in optimizer.state.values() for value in state.values()),
    }
    optimizer.zero_grad()
    with profiled() as prof:
        results = forward()
    element = 2 if precision == "bf16" else 4
    root = sum(p.numel() for p in (*model.embed.parameters(), *model.norm.parameters())) * element  # still gathered
    found["activations"] = allocated(prof)[0] - root
    results[1].backward()
    optimizer.zero_grad()
    del results
    with profiled() as prof:
        step()
    found["peak"] = allocated(prof)[1] + found["parameters"] + found["optimizer"]
    optimizer.zero_grad()
    state = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer)))
    dcp.save({**state, f"rng-{rank}": torch.get_rng_state()}, checkpoint_id="saved")
    open(f"found-{rank}.json", "w").write(json.dumps(found))
"""


def planned(folder: Path, *options: str) -> Any:
    command = ("plan", "--model", "net:build", "--block", "net:Block", "--micro-batch", "4", "--seq-len", "64")
    return fsdp2_json(*command, *options, cwd=folder)


def on_disk(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mesh", "micro_batches", "precision", "checkpointing", "optimizer"),
    [
        ("dp_shard=2", 1, "fp32", "none", "adamw"),
        pytest.param("dp_replicate=2,dp_shard=2", 1, "bf16", "full", "sgd", marks=pytest.mark.matrix),
        pytest.param("dp_shard=4", 3, "fp32", "full", "adamw", marks=pytest.mark.matrix),
        pytest.param("dp_shard=2", 2, "bf16", "none", "sgd", marks=pytest.mark.matrix),
        pytest.param("dp_shard=2,tp=2", 1, "fp32", "none", "adamw", marks=pytest.mark.matrix),
    ],
)
def test_memory_and_checkpoint_are_those_of_a_run(
    tmp_path: Path, mesh: str, micro_batches: int, precision: str, checkpointing: str, optimizer: str
) -> None:
    """Sharded state is equal to the byte, and activations within a hundredth or two of the allocator's own figures."""
    folder = tmp_path / "cwd"
    folder.mkdir()
    shutil.copy(NET, folder)
    ranks = math.prod(resolve_mesh(mesh, None, 8).sizes.values())
    run = run_script(tmp_path, RUN, nproc=ranks, args=(str(micro_batches), mesh, precision, checkpointing, optimizer))
    assert run.succeeded, [(end.code, end.output) for end in run.ends]
    found = [json.loads((folder / f"found-{rank}.json").read_text()) for rank in range(ranks)]
    plan = planned(
        folder, "--mesh", mesh, "--precision", precision, "--optimizer", optimizer,
        "--activation-checkpointing", checkpointing, "--micro-batches", str(micro_batches),
        *(("--parallelize", "net:split") if "tp" in mesh else ()),
    )  # fmt: skip
    memory = plan["memory"]
    for category in ("parameters", "gradients", "optimizer"):
        assert memory[category] == max(figures[category] for figures in found), category
    assert memory["activations"] == pytest.approx(found[0]["activations"], rel=0.1)
    if precision == "fp32":  # in bf16 the buffers of gloo's threads live on for a while, and not on all ranks alike
        assert memory["peak"] == pytest.approx(found[0]["peak"], rel=0.1)
    assert plan["checkpoint"]["bytes"] == pytest.approx(on_disk(folder / "saved"), rel=0.01)
    assert plan["checkpoint"]["files"] == len(list((folder / "saved").iterdir()))
    largest = max(file.stat().st_size for file in (folder / "saved").glob("*.distcp"))
    assert plan["checkpoint"]["rank"] == pytest.approx(largest, rel=0.15)  # whole tensors go to one replica or another


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.matrix)])
def test_sharded_state_is_what_the_probe_measures(ranks: int, tmp_path: Path) -> None:
    shutil.copy(NET, tmp_path)
    write_script(tmp_path, model="net:build", block="net:Block")
    command = ("validate", "train.py", "--nproc", str(ranks), "--prove", "trace", "--format", "json")
    process = fsdp2(*command, "--", "--data", str(TEXT), cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    modules = json.loads(process.stdout)["run"]["ownership"]
    plan = planned(tmp_path, "--mesh", f"dp_shard={ranks}")
    for planned_as, measured_as in (("parameters", "bytes"), ("optimizer", "optimizer_bytes")):
        of_ranks = zip(*(module[measured_as] for module in modules), strict=True)
        assert plan["memory"][planned_as] == max(map(sum, of_ranks)), planned_as


@pytest.mark.slow
def test_the_checkpoint_of_a_generated_script_is_as_large_as_planned(tmp_path: Path) -> None:
    shutil.copy(NET, tmp_path)
    script = write_script(tmp_path, model="net:build", block="net:Block", async_mode="disabled")
    training = Training(script, tmp_path / "run", 2, small={**ANY_MODEL, "--steps": "4"})
    training.finish()
    saved = training.checkpoints / "step-4"
    plan = planned(tmp_path, "--mesh", "dp_shard=2")
    assert plan["checkpoint"]["bytes"] == pytest.approx(on_disk(saved), rel=0.01)
    inspected = fsdp2_json("inspect", str(saved), cwd=tmp_path)["checkpoints"][0]
    assert plan["checkpoint"]["files"] == 3 and inspected["whole"]
