"""FS2: what `fully_shard` is applied to, and in which order."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ..events import (
    ActivationsCheckpointed,
    CollectiveCalled,
    ForwardEntered,
    MeshCreated,
    ModuleBuilt,
    OptimizerBuilt,
    Precision,
    Ref,
    Sharded,
    Stepped,
)
from ..findings import Finding, Severity
from ..trace import Trace, implied
from .base import READER, Rule, concluded, in_tests, listed


class RootNotSharded(Rule):
    """Gradients of parameters that no sharded module manages are never reduced: each rank trains its own copy."""

    code = "FS201"
    name = "root-not-sharded"
    severity = Severity.ERROR
    clause = 2

    def check(self, trace: Trace) -> Iterator[Finding]:
        for entered in trace.of(ForwardEntered):
            model = entered.module
            sharded = [s for s in trace.before(entered, Sharded) if trace.related(s.module, model)]
            inner = [s for s in sharded if trace.inside(s.module, model)]
            if not inner or len(inner) < len(sharded) or entered.uncovered == () or trace.escaped(model):
                continue
            if entered.uncovered is None and self._holds_one_whole(trace, inner):
                continue
            names = ", ".join(f"`{name}`" for name in (entered.uncovered or ())[:3])
            message = (
                f"parts of `{model.name}` are sharded but not `{model.name}` itself, so the gradients of what lies "
                f"outside of them{f' ({names})' if names else ''} are never reduced and the ranks drift apart. "
                f"End with fully_shard({model.name})."
            )
            yield self.finding(inner[-1], message, (entered, "called here"))

    def _holds_one_whole(self, trace: Trace, inner: list[Sharded]) -> bool:
        """Whether all that was sharded lies in one module, around which what is called may add nothing of its own."""
        modules = {s.module for s in inner}
        outermost = [m for m in modules if not any(trace.inside(m, other) for other in modules)]
        return len(outermost) == 1 and not outermost[0].many


class RootOnlySharded(Rule):
    """One group of parameters is gathered as one: the whole model is in memory at once, and nothing overlaps."""

    code = "FS202"
    name = "root-only-sharded"
    severity = Severity.WARN
    clause = 2

    def check(self, trace: Trace) -> Iterator[Finding]:
        every = list(trace.of(Sharded))
        for root in every:
            if root.blocks is not True or trace.escaped(root.module) or in_tests(root):
                continue
            if any(self._may_lie_inside(trace, s.module, root.module) for s in every if s.module != root.module):
                continue
            if not any(trace.after(root, ForwardEntered)) and not concluded(trace):
                continue  # its blocks may have been about to be sharded, in the wrong order
            name = root.module.name
            message = (
                f"`{name}` is sharded as one group although it is made of blocks: each forward gathers all of its "
                f"parameters at once. Call fully_shard on each block first, then on `{name}`."
            )
            yield self.finding(root, message)

    def _may_lie_inside(self, trace: Trace, module: Ref, root: Ref) -> bool:
        """Whether it does, or is of unknown origin (found by its name, say)."""
        known = any(trace.within(module, b.module) for b in trace.of(ModuleBuilt))
        return trace.related(module, root) or (trace.origin == READER and not known)


class ShardedTopDown(Rule):
    """A module takes hold of all parameters in it that are not yet sharded, so what it holds must come first."""

    code = "FS203"
    name = "sharded-top-down"
    severity = Severity.ERROR
    clause = 2

    def check(self, trace: Trace) -> Iterator[Finding]:
        for outer in trace.of(Sharded):
            inner = (
                s
                for s in trace.after(outer, Sharded)
                if trace.inside(s.module, outer.module) and not self._may_be_another(trace, outer, s)
            )
            # Under a condition of its own it may be meant for a module that was changed after it had been sharded; and
            # what follows a branch need not follow the sharding on it, after which the function may have returned.
            late = next((s for s in inner if implied(s, outer) and implied(outer, s)), None)
            if late is None:
                continue
            message = (
                f"`{outer.module.name}` is sharded before `{late.module.name}`, which lies inside it and whose "
                f"parameters it has already taken. Move fully_shard({outer.module.name}) after the last inner one."
            )
            yield self.finding(outer, message, (late, "sharded here, too late"))

    def _may_be_another(self, trace: Trace, outer: Sharded, inner: Sharded) -> bool:
        """Whether one call is told twice, of a module that may be either: an element of a list, or all there is.

        Also where it is told of several modules, each of which may be sharded later than what lies in it, and where the
        inner one was sharded before, too.
        """
        if outer.among or any(s.module == inner.module for s in trace.before(outer, Sharded)):
            return True
        if trace.origin != READER or outer.at != inner.at:
            return False
        return not any(b.module == outer.module for b in trace.of(ModuleBuilt))


class PolicyDiffersBetweenGroups(Rule):
    """A policy holds for the group that it is passed to, not for the groups inside it or around it."""

    code = "FS207"
    name = "policy-differs-between-groups"
    severity = Severity.WARN
    clause = 2

    def check(self, trace: Trace) -> Iterator[Finding]:
        for root in trace.of(Sharded):
            inside = (s for s in trace.before(root, Sharded) if trace.inside(s.module, root.module))
            inner = [s for s in inside if s.manages is not False]  # what owns no parameters needs no policy
            # A part of a block may well be kept in float32 on purpose.
            is_part = any(trace.inside(root.module, s.module) for s in trace.of(Sharded))
            if root.manages is not True or not inner or is_part:
                continue
            name = root.module.name
            if root.precision == Precision() and all(map(_computes_low, inner)):
                which = f"mp_policy is passed for the modules in `{name}` that are sharded, and not for `{name}` itself"
            elif _computes_low(root) and all(s.precision == Precision() for s in inner):
                which = f"mp_policy is passed for `{name}`, and not for the modules in it that are sharded"
            else:
                continue
            message = (
                f"{which}. A policy holds only for the parameters that one fully_shard call takes hold of, so that one "
                "part computes in low precision and the other in float32: layers are given inputs of another dtype "
                "than theirs. Pass the same policy to every call."
            )
            yield self.finding(root, message, (inner[0], "sharded here with another policy"))


def _computes_low(sharded: Sharded) -> bool:
    return sharded.precision is not None and sharded.precision.param in ("bfloat16", "float16")


class HybridMeshOrder(Rule):
    """Of a mesh with two dimensions `fully_shard` replicates along the first and shards along the second."""

    code = "FS208"
    name = "hybrid-mesh-order"
    severity = Severity.ERROR
    clause = 2

    def check(self, trace: Trace) -> Iterator[Finding]:
        told = set[Ref]()
        for sharded in trace.of(Sharded):
            dims = sharded.mesh_dims or ()
            if len(dims) != 2 or sharded.mesh in told or not (_shards(dims[0]) and _replicates(dims[1])):
                continue
            if sharded.mesh is not None:
                told.add(sharded.mesh)
            created = next((m for m in trace.before(sharded, MeshCreated) if m.mesh == sharded.mesh), None)
            message = (
                f"the mesh of `{sharded.module.name}` has the dimensions {dims}, and fully_shard goes by their order, "
                f"not by their names: it replicates along `{dims[0]}` and shards along `{dims[1]}`. "
                f'Build the mesh as ("{dims[1]}", "{dims[0]}"), with the sizes in that order.'
            )
            yield self.finding(sharded, message, (created, "the mesh is made here"))
        yield from self._left_out(trace)

    def _left_out(self, trace: Trace) -> Iterator[Finding]:
        """A hybrid mesh that is made, and no call of `fully_shard` gets a mesh."""
        calls = list(trace.of(Sharded))
        if not calls or not all(sharded.everyone for sharded in calls):
            return
        for created in trace.of(MeshCreated):
            sizes = zip(created.dims or (), created.shape or (), strict=False)
            copies = next(((name, n) for name, n in sizes if _replicates(name) and n is not None and n > 1), None)
            passed_on = created.mesh is None or trace.escaped(created.mesh)
            if copies is not None and not passed_on and any(_shards(name) for name in created.dims or ()):
                message = (
                    f"a mesh is made with {copies[1]} copies along `{copies[0]}`, and no fully_shard gets it: "
                    f"`{calls[-1].module.name}` is cut over all ranks, and gathered across what should hold copies. "
                    "Give it to each call: fully_shard(module, mesh=mesh)."
                )
                yield self.finding(calls[-1], message, (created, "the mesh is made here"))
                return


def _shards(name: str) -> bool:
    return re.search(r"shard|fsdp", name, re.IGNORECASE) is not None and not _replicates(name)


def _replicates(name: str) -> bool:
    return re.search(r"repl|(^|_)ddp$", name, re.IGNORECASE) is not None


class ContainerSharded(Rule):
    """FSDP gathers and frees parameters around a module's `forward`; what has none is never called."""

    code = "FS210"
    name = "container-sharded"
    severity = Severity.ERROR
    clause = 2

    def check(self, trace: Trace) -> Iterator[Finding]:
        for sharded in trace.of(Sharded):
            if not sharded.container:
                continue
            name = sharded.module.name
            message = (
                f"`{name}` only holds modules and has no forward, around which parameters could be gathered: "
                f"fully_shard raises ValueError. Call it on each module in `{name}`, then on what holds it."
            )
            yield self.finding(sharded, message)


class CheckpointWrapperAfterSharding(Rule):
    """The wrapper takes the place of an FSDP module and is none itself."""

    code = "FS214"
    name = "checkpoint-wrapper-after-sharding"
    severity = Severity.WARN
    clause = 2

    def check(self, trace: Trace) -> Iterator[Finding]:
        for wrapped in trace.of(ActivationsCheckpointed):
            before = (s for s in trace.before(wrapped, Sharded) if s.module == wrapped.module and not s.among)
            sharded = next(before, None)
            if sharded is None or self._is_root(trace, wrapped.module):
                continue
            message = (
                f"`{wrapped.module.name}` is wrapped for activation checkpointing after fully_shard: in its place is "
                "now a wrapper that is no FSDPModule, which whatever goes through the FSDP modules passes by "
                "(prefetching, gradient sync). Wrap it first, then call fully_shard on the wrapper."
            )
            yield self.finding(wrapped, message, (sharded, "sharded here"))

    def _is_root(self, trace: Trace, module: Ref) -> bool:
        """Whether others are sharded and none of them holds it: what is asked of a wrapper around all, it passes on."""
        others = [s.module for s in trace.of(Sharded) if s.module != module]
        return bool(others) and not any(trace.inside(module, other) for other in others)


class IgnoredParamsNotReduced(Rule):
    """What `fully_shard` is told to leave alone it leaves alone in backward, too."""

    code = "FS216"
    name = "ignored-params-not-reduced"
    severity = Severity.ERROR
    clause = 2

    def check(self, trace: Trace) -> Iterator[Finding]:
        for stepped in trace.of(Stepped):
            modules = [
                m for b in trace.before(stepped, OptimizerBuilt) if b.optimizer == stepped.optimizer for m in b.modules
            ]
            for entered in trace.before(stepped, ForwardEntered):
                names = [name for name in entered.uncovered or () if not _EXPERT.search(name)]
                ignoring = (s for s in trace.before(entered, Sharded) if self._ignores(trace, s, entered, modules))
                sharded = next(ignoring, None) if names else None
                if sharded is None or self._reduced(trace, sharded, stepped):
                    continue
                message = (
                    f"ignored_params leaves {listed(names)} of `{entered.module.name}` to you: each rank steps them "
                    "with the gradient of its own batch, and the ranks drift apart. Let fully_shard have them, freeze "
                    "them, or all-reduce their gradients between backward and step."
                )
                yield self.finding(sharded, message, (stepped, "stepped here"))
                break

    def _ignores(self, trace: Trace, sharded: Sharded, entered: ForwardEntered, trained: list[Ref]) -> bool:
        """Whether it was told to ignore what the optimizer steps, of the module that is called."""
        if not trace.related(sharded.module, entered.module) or trace.escaped(entered.module):
            return False
        ignored = [m for m in sharded.ignores if not trace.escaped(m)]
        return any(trace.related(module, m) for module in trained for m in ignored)

    def _reduced(self, trace: Trace, sharded: Sharded, stepped: Stepped) -> bool:
        """Whether the program reduces something itself: by a hook, or between backward and step."""
        return any(c.op in _REDUCES for c in trace.between(sharded, stepped, CollectiveCalled))


# Each rank may have experts of its own, which no other rank has gradients for.
_EXPERT = re.compile(r"expert", re.IGNORECASE)
_REDUCES = ("all_reduce", "all_reduce_coalesced", "reduce_scatter", "reduce_scatter_tensor", "broadcast", "all_gather")
