"""FS2: what is done to a model after `fully_shard` has taken hold of it."""

from __future__ import annotations

from collections.abc import Iterator

from ..events import (
    AcceleratorUsed,
    Attached,
    Compiled,
    DeepCopied,
    Materialised,
    MeshCreated,
    ModuleBuilt,
    OptimizerBuilt,
    Parallelised,
    Sharded,
    WrapperApiUsed,
)
from ..findings import Finding, Severity
from ..trace import Trace, implied, together
from .base import READER, Rule, in_tests

_INSTEAD = {
    "no_sync": "call set_requires_gradient_sync(False) before the backward of all micro-batches but the last",
    "clip_grad_norm_": "call torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)",
    "summon_full_params": "call full_tensor() of the parameters, on all ranks",
    "check_is_root": "leave it out",
}
_STATE = "use get_state_dict and set_state_dict of torch.distributed.checkpoint.state_dict"


class AttachedAfterSharding(Rule):
    """`fully_shard` manages the parameters that are there: those that come later are not reduced."""

    code = "FS204"
    name = "attached-after-sharding"
    severity = Severity.ERROR
    clause = 2

    def check(self, trace: Trace) -> Iterator[Finding]:
        for attached in trace.of(Attached):
            sharded = [s for s in trace.before(attached, Sharded) if trace.related(s.module, attached.to)]
            if not sharded or trace.escaped(attached.module) or self._sharded_later(trace, attached):
                continue
            both = [b for b in trace.of(ModuleBuilt) if b.module in (attached.module, attached.to)]
            if not all(together(b, attached) for b in both):
                continue  # of several models that the program may build, this is another one's
            built = next((o for o in trace.after(attached, OptimizerBuilt) if self._trains(trace, o, attached)), None)
            if built is None:
                continue
            message = (
                f"`{attached.module.name}` becomes part of `{attached.to.name}` after fully_shard: nothing reduces the "
                "gradients of its parameters, and the ranks drift apart. Build the whole model first, then shard it."
            )
            yield self.finding(
                attached, message, (sharded[-1], "sharded here, earlier"), (built, "its parameters are trained here")
            )

    def _sharded_later(self, trace: Trace, attached: Attached) -> bool:
        """Whether the module, all that is in it, or what it became part of is sharded afterwards."""
        return any(
            trace.related(s.module, attached.module) or trace.within(attached.to, s.module)
            for s in trace.after(attached, Sharded)
        )

    def _trains(self, trace: Trace, built: OptimizerBuilt, attached: Attached) -> bool:
        return any(trace.within(attached.module, m) for m in built.modules)


class TensorParallelAfterSharding(Rule):
    """Tensor parallelism divides whole parameters; `fully_shard` divides what it then finds, which may be divided."""

    code = "FS211"
    name = "tensor-parallel-after-sharding"
    severity = Severity.ERROR
    clause = 2

    def check(self, trace: Trace) -> Iterator[Finding]:
        for applied in trace.of(Parallelised):
            module = applied.module
            if applied.divides is False:
                continue
            before = (s for s in trace.before(applied, Sharded) if implied(s, applied))
            # A module in which only parts are sharded may have a plan for the rest of it.
            sharded = next((s for s in before if trace.within(module, s.module)), None)
            if sharded is None:
                continue
            message = (
                f"`{module.name}` is made tensor parallel after fully_shard has taken its parameters: they are divided "
                "over the data-parallel mesh already, and dividing them over another one raises ValueError. "
                "Call parallelize_module first, then fully_shard."
            )
            yield self.finding(applied, message, (sharded, "sharded here, earlier"))


class MeshesFromDifferentRoots(Rule):
    """A parameter that is divided twice lies on one mesh of two dims, of which both meshes have to be slices."""

    code = "FS215"
    name = "meshes-from-different-roots"
    severity = Severity.ERROR
    clause = 2

    def check(self, trace: Trace) -> Iterator[Finding]:
        for applied in trace.of(Parallelised):
            sharded = next((s for s in trace.after(applied, Sharded) if self._apart(trace, applied, s)), None)
            if sharded is None:
                continue
            made = [m for m in trace.of(MeshCreated) if m.mesh in (applied.root, sharded.root)]
            which = "the mesh of all ranks, as none is passed" if sharded.everyone else "another mesh"
            message = (
                f"`{sharded.module.name}` is tensor parallel over one mesh and sharded over {which}: its parameters "
                "would lie on two meshes that know nothing of each other, and torch raises. Make one mesh with both "
                'dims, init_device_mesh(device, (dp, tp), mesh_dim_names=("dp", "tp")), and pass mesh["tp"] and '
                'mesh["dp"].'
            )
            yield self.finding(
                sharded, message, (applied, "tensor parallel here"), *((m, "a mesh is made here") for m in made)
            )

    def _apart(self, trace: Trace, applied: Parallelised, sharded: Sharded) -> bool:
        """Whether the two are sure to overlap: newer releases take slices of two meshes that do not."""
        divides = trace.related(applied.module, sharded.module) and applied.module not in sharded.ignores
        if not divides or applied.mesh is None:
            return False
        one = next((m for m in trace.before(applied, MeshCreated) if m.mesh == applied.root), None)
        if sharded.everyone or one is None:
            return sharded.everyone and one is not None
        other = next((m for m in trace.before(sharded, MeshCreated) if m.mesh == sharded.root), None)
        if other is None or one.mesh == other.mesh:
            return False
        whole = applied.mesh == applied.root or sharded.mesh == sharded.root
        equal = (one.shape, one.dims, one.device_type) == (other.shape, other.dims, other.device_type)
        return whole and not equal


class WrapperApiOnSharded(Rule):
    """What FSDP1's wrapper class offers works on modules that it has wrapped; `fully_shard` wraps nothing."""

    code = "FS212"
    name = "fsdp1-api-on-fsdp2"
    severity = Severity.ERROR
    clause = 2

    def check(self, trace: Trace) -> Iterator[Finding]:
        for used in trace.of(WrapperApiUsed):
            # Where the branch that shards need not be taken, the module may have been wrapped on the other one.
            before = (s for s in trace.before(used, Sharded) if s.module == used.module and implied(s, used))
            sharded = next(before, None)
            if sharded is None:
                continue
            instead = _INSTEAD.get(used.name.rpartition(".")[2], _STATE)
            message = (
                f"`{used.name}` is of FSDP1, and `{used.module.name}` was sharded by fully_shard, which knows nothing "
                f"of it: {instead}."
            )
            yield self.finding(used, message, (sharded, "sharded here"))


class ShardedModelDeepCopied(Rule):
    """What a sharded module refers to, its process groups among it, cannot be copied."""

    code = "FS217"
    name = "sharded-model-deep-copied"
    severity = Severity.ERROR
    clause = 2
    seen_by = frozenset({READER})

    def check(self, trace: Trace) -> Iterator[Finding]:
        for copied in trace.of(DeepCopied):
            module = copied.module
            before = (s for s in trace.before(copied, Sharded) if implied(s, copied))
            sharded = next((s for s in before if trace.within(s.module, module)), None)
            if sharded is None or trace.escaped(module, since=sharded):
                continue
            message = (
                f"`{module.name}` is copied after fully_shard, and FSDP modules refuse to be deep-copied: this raises "
                "AssertionError. Copy it before it is sharded and shard the copy in the same way, or keep the average "
                "of its parameters as a dictionary of tensors."
            )
            yield self.finding(copied, message, (sharded, "sharded here, earlier"))


class CompiledWholeAfterSharding(Rule):
    """What `fully_shard` runs around the forward of each group cannot be compiled: the graph is cut there."""

    code = "FS213"
    name = "compiled-whole-after-sharding"
    severity = Severity.WARN
    clause = 2
    seen_by = frozenset({READER})

    def check(self, trace: Trace) -> Iterator[Finding]:
        for compiled in trace.of(Compiled):
            module = compiled.module
            before = [s for s in trace.before(compiled, Sharded) if implied(s, compiled)]
            whole = next((s for s in before if s.module == module), None)
            if whole is None or not any(trace.inside(s.module, module) for s in before):
                continue
            message = (
                f"`{module.name}` is compiled as a whole after it was sharded group by group: the graph is cut at the "
                "hooks of each group (fullgraph=True raises), so that nothing is compiled across them. Compile each "
                "block in place (block.compile()) before fully_shard, and leave the root alone."
            )
            yield self.finding(compiled, message, (whole, "sharded here, earlier"))


class FullModelBeforeSharding(Rule):
    """Sharding is for models that one GPU cannot hold; on the way there each has to hold all of it."""

    code = "FS218"
    name = "full-model-before-sharding"
    severity = Severity.WARN
    clause = 3
    seen_by = frozenset({READER})

    def check(self, trace: Trace) -> Iterator[Finding]:
        for moved in trace.of(AcceleratorUsed):
            module = moved.module
            if module is None or trace.escaped(module) or moved.when.only is not None or in_tests(moved):
                continue
            if any(trace.related(s.module, module) for s in trace.before(moved, Sharded)):
                continue
            later = [s for s in trace.after(moved, Sharded) if implied(moved, s)]
            sharded = next((s for s in later if s.module == module and s.blocks is True), None)
            if sharded is None or any(trace.inside(module, s.module) for s in later):
                continue  # a small model, or a part of one, as when parts are moved and sharded in turns
            emptied = any(m.at == moved.at for m in trace.of(Materialised))
            advice = "Shard it on the meta device, then call to_empty" if emptied else "Leave it where it was built"
            message = (
                f"all of `{module.name}` is put on the GPU before fully_shard: for a moment each GPU holds the whole "
                f"model, which is what sharding is to avoid. {advice}: fully_shard moves one group after the other, "
                "and keeps this rank's part."
            )
            yield self.finding(moved, message, (sharded, "sharded here, later"))
