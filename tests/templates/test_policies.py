"""What each option of sharding and computing does to the model of a generated script, in a world of one rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch.distributed.fsdp import FSDPModule  # noqa: E402
from torch.distributed.tensor import DTensor  # noqa: E402

from .loaded import joined, load_script, parse  # noqa: E402

Built = Callable[..., tuple[ModuleType, Any, Any]]


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Built]:
    """Builds the model of a script with these options: the script, its arguments and its model."""

    def build(**chosen: str) -> tuple[ModuleType, Any, Any]:
        train = load_script(tmp_path, **chosen)
        args = parse(train, monkeypatch, world=1, layers="4")
        device = torch.device("cpu")
        return train, args, train.build_model_meta(args, train.build_mesh(args, device), device)

    with joined():
        yield build


def step(train: ModuleType, args: Any, model: Any) -> Any:
    """Take one optimizer step; the state that took it."""
    state = train.TrainState(model, *train.build_optimizer(model, args))
    data = train.load_data(args)
    tokens = train.draw_batch(data, args, 0, train.build_mesh(args, torch.device("cpu")))
    train.train_step(state, tokens.split(args.micro_batch))
    return state


def test_bf16_computes_in_bf16_and_keeps_everything_else_in_fp32(built: Built) -> None:
    train, args, model = built(precision="bf16")
    seen = set()
    model.blocks[0].qkv.register_forward_hook(lambda module, _, out: seen.update({module.weight.dtype, out.dtype}))
    gradients = []
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda p: gradients.append(p.grad.dtype))
    state = step(train, args, model)
    assert seen == {torch.bfloat16}
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert set(gradients) <= {torch.float32}
    moments = [v for per in state.optimizer.state.values() for v in per.values()]
    assert moments and {v.dtype for v in moments} == {torch.float32}
    assert model.rotary.dtype == torch.float32


@pytest.mark.slow
@pytest.mark.parametrize(("which", "again"), [("none", []), ("full", [0, 1, 2, 3]), ("2", [0, 2]), ("3", [0, 3])])
def test_checkpointed_blocks_and_no_others_compute_their_activations_again(
    built: Built, which: str, again: list[int]
) -> None:
    train, args, model = built(activation_checkpointing=which)
    calls = [0] * len(model.blocks)
    for index, block in enumerate(model.blocks):
        block.qkv.register_forward_hook(lambda *_, index=index: calls.__setitem__(index, calls[index] + 1))
    step(train, args, model)
    once = args.global_batch // args.micro_batch
    assert calls == [once * (2 if index in again else 1) for index in range(len(model.blocks))]


def test_activation_checkpointing_changes_no_number(built: Built) -> None:
    weights = []
    for which in ("none", "full"):
        train, args, model = built(activation_checkpointing=which)
        torch.manual_seed(0)
        step(train, args, model)
        weights.append([p.full_tensor() for p in model.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*weights, strict=True))


def test_compiled_are_the_blocks_before_they_are_sharded(built: Built, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = []

    def note(module: Any, *_: Any, **__: Any) -> None:
        compiled.append(module)
        assert not isinstance(module, FSDPModule)

    monkeypatch.setattr(torch.nn.Module, "compile", note)
    _, _, model = built(compile="on")
    assert compiled == list(model.blocks)


@pytest.mark.parametrize(
    ("when", "gathered"),
    [("default", [False, False, True]), ("always", [False, False, False]), ("never", [True, True, True])],
)
def test_what_stays_gathered_between_forward_and_backward(built: Built, when: str, gathered: list[bool]) -> None:
    _, args, model = built(reshard_after_forward=when)
    model(torch.zeros(1, args.seq_len, dtype=torch.long))
    parameters = (model.blocks[0].up.weight, model.blocks[3].down.weight, model.embed.weight)
    assert [not isinstance(parameter, DTensor) for parameter in parameters] == gathered


def test_prefetch_gathers_the_blocks_that_come_next_in_each_direction(built: Built) -> None:
    _, _, model = built(prefetch="2")
    first, second, third, fourth = states = [block._get_fsdp_state() for block in model.blocks]
    assert [state._states_to_forward_prefetch for state in states] == [
        [second, third], [third, fourth], [fourth], []
    ]  # fmt: skip
    assert [state._states_to_backward_prefetch for state in states] == [
        [], [first], [second, first], [third, second]
    ]  # fmt: skip


def test_offloaded_parameters_are_the_cpus_and_buffers_the_devices(built: Built) -> None:
    train, args, model = built(cpu_offload="on")
    policy = model._get_fsdp_state()._fsdp_param_group.offload_policy
    assert type(policy).__name__ == "CPUOffloadPolicy" and policy.pin_memory is False
    assert {p.device.type for p in model.parameters()} == {"cpu"}
    step(train, args, model)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("cosine", {0: 0.2, 5: 1.0, 50: 0.587, 100: 0.1}),
        ("linear", {0: 0.2, 5: 1.0, 50: 0.574, 100: 0.1}),
        ("constant", {0: 0.2, 5: 1.0, 50: 1.0, 100: 1.0}),
        ("wsd", {0: 0.2, 5: 1.0, 50: 1.0, 80: 1.0, 90: 0.55, 100: 0.1}),
    ],
)
def test_a_schedule_warms_up_and_then_goes_its_way(built: Built, schedule: str, expected: dict[int, float]) -> None:
    train, args, model = built(schedule=schedule)
    args.steps = 100
    _, scheduler = train.build_optimizer(model, args)
    scale = scheduler.lr_lambdas[0]
    assert {at: round(scale(at), 3) for at in expected} == expected
    assert all(0 < scale(at) <= 1 for at in range(101))


def test_adafactor_of_torch_still_fails_on_sharded_parameters(built: Built) -> None:
    """Why the generator refuses it. Once this test fails, it need not any more."""
    train, args, model = built()
    state = train.TrainState(model, torch.optim.Adafactor(model.parameters()), None)
    model(torch.zeros(1, args.seq_len, dtype=torch.long)).sum().backward()
    with pytest.raises(RuntimeError, match="placement"):
        state.optimizer.step()
