"""FS3: what the parameters and buffers of a model hold when training begins."""

from __future__ import annotations

from collections.abc import Iterator

from ..events import (
    Backward,
    CollectiveCalled,
    Exited,
    ForwardEntered,
    GroupDestroyed,
    Materialised,
    MeshCreated,
    ModuleBuilt,
    OptimizerBuilt,
    Parallelised,
    Ref,
    Seeded,
    Sharded,
    StateApplied,
)
from ..findings import Finding, Severity
from ..trace import Trace
from .base import PROBE, READER, Rule, listed


class MetaNeverMaterialised(Rule):
    """On the meta device a parameter has a shape and no memory; nothing can be computed with it."""

    code = "FS301"
    name = "meta-never-materialised"
    severity = Severity.ERROR
    clause = 3

    def check(self, trace: Trace) -> Iterator[Finding]:
        for entered in trace.of(ForwardEntered):
            name = entered.module.name
            built = next((b for b in trace.of(ModuleBuilt) if b.module == entered.module), None)
            if not entered.on_meta or trace.escaped(entered.module):
                continue
            if not entered.sharded and not self._is_meant_to_work(trace, entered.module):
                continue  # it is asked for shapes
            message = (
                f"`{name}` is called while its parameters are on the meta device, where they have no values, so the "
                f"call raises. After sharding, call {name}.to_empty(device=...), then initialise or load all of it."
            )
            yield self.finding(entered, message, (built, "built on the meta device here"))

    def _is_meant_to_work(self, trace: Trace, module: Ref) -> bool:
        """Whether something is done to the module that is of no use for the mere shapes of its outputs."""
        given = {m for built in trace.of(OptimizerBuilt) for m in built.modules}
        done = {e.module for e in trace.of(Sharded)} | {e.module for e in trace.of(Materialised)}
        done |= {e.module for e in trace.of(Parallelised)} | {m for e in trace.of(StateApplied) for m in e.to}
        return any(trace.related(module, other) for other in given | done)


class MaterialisedNeverInitialised(Rule):
    """`to_empty` allocates and writes nothing: the parameters hold whatever was in memory."""

    code = "FS302"
    name = "materialised-never-initialised"
    severity = Severity.ERROR
    clause = 3

    def check(self, trace: Trace) -> Iterator[Finding]:
        for entered, materialised in _called_unset(trace):
            if entered.unset is None or not entered.unset.everything:
                continue
            name = entered.module.name
            message = (
                f"`{name}` is called with what to_empty left in its parameters, which is whatever was in memory. "
                "After to_empty, let every module initialise itself (reset_parameters or the like) or load a "
                "checkpoint."
            )
            yield self.finding(materialised, message, (entered, "called here"))


class BuffersLeftUninitialised(Rule):
    """A buffer that is not persistent is in no checkpoint: after `to_empty` it has to be computed again."""

    code = "FS303"
    name = "buffers-left-uninitialised"
    severity = Severity.ERROR
    clause = 3

    def check(self, trace: Trace) -> Iterator[Finding]:
        for entered, materialised in _called_unset(trace):
            if entered.unset is None or entered.unset.everything or not entered.unset.buffers:
                continue
            message = (
                f"to_empty leaves whatever was in memory in the buffers of `{entered.module.name}` too, and nothing "
                f"computes {listed(entered.unset.buffers)} again before the call; a checkpoint brings back "
                "persistent buffers only. Compute it where the parameters are initialised or loaded."
            )
            yield self.finding(materialised, message, (entered, "called here"))


class InitialisationMissesParameters(Rule):
    """A loop over modules that have `reset_parameters` passes by the parameters of those that do not."""

    code = "FS304"
    name = "initialisation-misses-parameters"
    severity = Severity.ERROR
    clause = 3

    def check(self, trace: Trace) -> Iterator[Finding]:
        for entered, materialised in _called_unset(trace):
            if entered.unset is None or entered.unset.everything or not entered.unset.parameters:
                continue
            message = (
                f"after to_empty some parameters of `{entered.module.name}` are initialised, and "
                f"{listed(entered.unset.parameters)} is not: it holds whatever was in memory. Give the module that "
                "owns it a reset_parameters (or what your loop calls), so that none is left out."
            )
            yield self.finding(materialised, message, (entered, "called here"), (entered.unset.made, "made here"))


class RanksStartDifferent(Rule):
    """`fully_shard` broadcasts nothing: each rank keeps its rows of the weights that it has itself."""

    code = "FS307"
    name = "ranks-start-different"
    severity = Severity.ERROR
    clause = 3

    def check(self, trace: Trace) -> Iterator[Finding]:
        if trace.origin == READER and any(trace.of(Exited, GroupDestroyed)) and not any(trace.of(Backward)):
            return  # nothing is trained: what is evaluated was given weights somewhere
        for entered in trace.of(ForwardEntered):
            model = entered.module
            if entered.alike is not False or trace.escaped(model):
                continue
            sharded = [s for s in trace.before(entered, Sharded) if trace.related(s.module, model)]
            if not sharded or any(trace.related(p.module, model) for p in trace.of(Parallelised)):
                continue
            loads = [a for a in trace.before(entered, StateApplied) if any(trace.related(m, model) for m in a.to)]
            if trace.origin == READER and all(a.when.only is None for a in loads):
                loads = []  # those of a run that goes on: one that begins has nothing to load
            built = next((b for b in trace.before(entered, ModuleBuilt) if b.module == model), None) or sharded[0]
            seeded = [s for s in trace.before(built, Seeded) if trace.origin == PROBE or s.per_rank]
            if trace.origin == READER and (_sent(trace, sharded[0], loads) or not (loads or seeded)):
                continue
            # Independent draws are as good as one where no rank has a copy of another's and none was meant to.
            if trace.origin == PROBE and not (loads or seeded or any(_has_replicas(trace, s) for s in sharded)):
                continue
            if loads and trace.origin == READER:
                message = (
                    f"only some ranks (`{loads[0].when.only}`) load weights into `{model.name}`, and fully_shard sends "
                    "them nowhere: each rank keeps its own rows, most of them random. Load on every rank, or after "
                    "sharding by set_model_state_dict with full_state_dict=True and broadcast_from_rank0=True."
                )
                yield self.finding(loads[0], message, (sharded[0], "sharded here"))
                continue
            given = next((a for a in reversed(loads) if a.collective and a.broadcast is False), None)
            if given is not None and trace.origin == PROBE:
                message = (
                    f"the ranks give `{model.name}` different weights, and each keeps its rows of its own: it is "
                    "pieced together from several. Give all ranks the same, or set broadcast_from_rank0=True in the "
                    "options and let rank 0 bring them."
                )
                yield self.finding(given, message, (sharded[0], "sharded here"))
                continue
            message = (
                f"the ranks begin with different weights in `{model.name}`, and fully_shard broadcasts nothing: each "
                "keeps its rows of its own, and replicas of a hybrid mesh stay different for good. Seed all ranks "
                "alike until the model is built (and by rank afterwards), or load the same weights into all."
            )
            yield self.finding(built, message, *[(s, "seeded here") for s in seeded[-1:]])


def _has_replicas(trace: Trace, sharded: Sharded) -> bool:
    """Whether ranks are to have the same part of the weights."""
    made = next((m for m in trace.before(sharded, MeshCreated) if m.mesh == sharded.root), None)
    sizes = dict(zip(made.dims or (), made.shape or (), strict=False)) if made is not None else {}
    dims = sharded.mesh_dims or ()
    return len(dims) == 2 and (sizes.get(dims[0]) or 1) > 1


def _sent(trace: Trace, sharded: Sharded, loads: list[StateApplied]) -> bool:
    """Whether all ranks may load, or be given, what one of them has."""
    if len({load.at for load in loads}) > 1 or any(load.when.only is None for load in loads):
        return True
    return any(c.op in ("broadcast", "scatter") for c in trace.before(sharded, CollectiveCalled))


def _called_unset(trace: Trace) -> Iterator[tuple[ForwardEntered, Materialised]]:
    """The calls of modules in which something was not set, with the `to_empty` that left it so."""
    for entered in trace.of(ForwardEntered):
        if entered.unset is None or trace.escaped(entered.module):
            continue
        earlier = [m for m in trace.before(entered, Materialised) if trace.related(m.module, entered.module)]
        if earlier:
            yield entered, earlier[-1]
