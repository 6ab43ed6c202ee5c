"""From the question to the plan: which instrument answers what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ...templates.mesh import parse_mesh
from ..errors import UserError
from .build import Built, build_config, build_factory, describe, has_transformers, parallelize
from .checkpoint import MODES, Checkpoint, checkpoint, measure
from .entries import entries
from .fits import propose
from .interval import interval
from .memory import Memory, Training, estimate
from .mesh import Mesh, resolve_mesh
from .model import Model, Parameter
from .report import Plan, Saving
from .scale import planning_at
from .tracked import fake_job, track
from .transformer import Transformer, from_config, from_numbers, read_config

VOCABULARY = 32_000  # of a model of which only numbers are known, as Llama 2 has it


@dataclass(frozen=True)
class Question:
    """What the command line asks, parsed; of `config`, `model` and `params` there is one."""

    config: Path | None
    model: str | None
    block: str | None
    parallelize: str | None
    params: int | None
    shape: Mapping[str, int | None]
    mesh: str
    nodes: int | None
    ranks_per_node: int
    training: Training
    bandwidth: int | None
    measure: Path | None
    staging_bandwidth: int
    mtbf: float | None
    restart: float
    fits: int | None
    scale: bool


def answer(question: Question) -> Plan:
    """The plan. Raises UserError."""
    mesh = resolve_mesh(question.mesh, question.nodes, question.ranks_per_node)
    training = question.training
    if question.model is not None and (mesh.tp > 1) != (question.parallelize is not None):
        raise UserError(
            f"--mesh {mesh}: --model and tp need --parallelize MODULE:FUNCTION, which splits the model over tp, and it "
            "goes with tp alone; expected both or neither"
        )
    known = _numbers(question, needed=mesh.tp > 1)
    if known is not None and known.transformer is not None:
        _check_heads(known.transformer, mesh)
    model, memory = _memory(question, known, mesh, training)
    saved = checkpoint(model, mesh, training.optimizer)
    bandwidth = measure(question.measure) if question.measure else question.bandwidth
    seconds = saved.node / bandwidth if bandwidth else None
    fitting, least = None, None
    if question.fits is not None:
        found, least = propose(
            known or model,
            mesh,
            training,
            question.fits,
            lambda *way: memory if way == (mesh, training) else _memory(question, known, *way)[1],
            tp=(mesh.tp,) if known is None else range(1, mesh.ranks_per_node + 1),
        )
        fitting = tuple(found)
    planning = None
    if question.scale:
        grows = next((dim for dim, size in parse_mesh(question.mesh).items() if size == -1), "dp_shard")
        planning = tuple(planning_at(entries(model, training.optimizer), mesh, grows))
    return Plan(
        model=model,
        mesh=mesh,
        training=training,
        memory=memory,
        checkpoint=saved,
        savings=tuple(_saving(question, mesh, saved, mode, seconds) for mode in MODES),
        bandwidth=bandwidth,
        seconds=seconds,
        limit=question.fits,
        fitting=fitting,
        least=least,
        planning=planning,
    )


def _check_heads(shape: Transformer, mesh: Mesh) -> None:
    """Raise UserError where the ranks of `tp` would not have as many heads each."""
    for count, heads in ((shape.heads, "heads"), (shape.kv_heads, "key and value heads")):
        if count % mesh.tp:
            raise UserError(
                f"--mesh {mesh}: tp={mesh.tp} does not divide the {count} {heads}; expected a size that does"
            )


def _numbers(question: Question, *, needed: bool) -> Model | None:
    """The model by its numbers; None where it is known by code only. `needed`: the mesh has tp; no config is built."""
    if question.params is not None:
        shape = question.shape
        layers, hidden = shape["layers"], shape["hidden"]
        assert layers and hidden  # the command line was checked
        vocabulary = shape["vocab"] or VOCABULARY
        found = from_numbers(
            params=question.params,
            layers=layers,
            hidden=hidden,
            heads=shape["heads"],
            kv_heads=shape["kv_heads"],
            vocab=vocabulary,
        )
        return _of_numbers(f"{layers} layers of {hidden}", found)
    if question.config is not None:
        config = read_config(question.config)
        try:
            return _of_numbers(str(question.config), from_config(config, str(question.config)))
        except UserError:
            if needed or not has_transformers():
                raise
            return None  # the formulas do not hold of it, but transformers builds it
    return None


def _of_numbers(name: str, shape: Transformer) -> Model:
    return Model(name, tuple(Parameter(*weight) for weight in shape.weights()), transformer=shape)


def _memory(question: Question, known: Model | None, mesh: Mesh, training: Training) -> tuple[Model, Memory]:
    """By the tracker where there is a module and its mesh can be had of it, else by formulas."""
    if question.model is None and (question.config is None or mesh.tp > 1 or not has_transformers()):
        assert known is not None
        return known, estimate(known, mesh, training)
    with fake_job(mesh) as ranks:
        built = _build(question)
        if question.parallelize is not None:
            parallelize(built, question.parallelize, ranks)
        model = describe(built)
        return model, track(built, ranks, training)


def _build(question: Question) -> Built:
    if question.config is not None:
        return build_config(question.config)
    assert question.model is not None
    assert question.block is not None
    return build_factory(question.model, question.block)


def _saving(question: Question, mesh: Mesh, saved: Checkpoint, mode: str, seconds: float | None) -> Saving:
    host, why = saved.host_memory(mode)
    stall = seconds
    if seconds is not None and mode != "disabled":
        stall = saved.staged / question.staging_bandwidth
    found = None
    if question.mtbf is not None and stall is not None and seconds is not None:
        found = interval(stall, seconds, question.mtbf, mesh.nodes, question.restart)
    return Saving(mode, host, why, stall, found)
