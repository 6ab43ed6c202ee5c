"""FS1: launch, process groups, and which rank does what."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator

from ..events import (
    AcceleratorUsed,
    AsyncSaved,
    Choice,
    CollectiveCalled,
    DeviceNamed,
    DeviceSet,
    Event,
    Exited,
    ForwardEntered,
    GradientsClipped,
    GroupCreated,
    GroupDestroyed,
    GroupInitialised,
    Loaded,
    MeshCreated,
    Question,
    Ref,
    Saved,
    Sharded,
    StateApplied,
    StateTaken,
    TorchLoaded,
)
from ..findings import Finding, Severity
from ..trace import Trace
from .base import READER, Rule, concluded, in_tests, unsharded


class DeviceNotSet(Rule):
    """Until a process chooses its accelerator it has the first one, so all processes of a machine share that."""

    code = "FS101"
    name = "device-not-set"
    severity = Severity.ERROR
    clause = 1
    seen_by = frozenset({READER})

    def check(self, trace: Trace) -> Iterator[Finding]:
        for initialised in trace.of(GroupInitialised):
            if "nccl" not in (initialised.backend or "") or initialised.device_bound or initialised.world_size == 1:
                continue
            # A group is agreed upon by way of the store, without a device.
            following = (e for e in trace.after(initialised, Event) if not isinstance(e, GroupCreated))
            meeting = (e for e in following if (e.collective and not self._is_barrier(e)) or isinstance(e, Sharded))
            first = next((e for e in meeting if not self._goes_by_its_tensor(trace, e)), None)
            if first is None or any(trace.before(first, DeviceSet)) or self._set_by_mesh(trace, first):
                continue
            message = (
                "NCCL is initialised, but no process chooses its GPU before the first collective: all processes of a "
                'machine use the first one. Call torch.cuda.set_device(int(os.environ["LOCAL_RANK"])) here.'
            )
            yield self.finding(initialised, message, (first, "first collective"))

    def _is_barrier(self, event: Event) -> bool:
        """One that nobody chose a device for takes that of the rank's number on its machine."""
        return isinstance(event, CollectiveCalled) and "barrier" in event.op

    def _set_by_mesh(self, trace: Trace, first: Event) -> bool:
        """Whether `first` makes a mesh, which sets the device itself, unless the accelerator is in use already."""
        makes = isinstance(first, MeshCreated) and first.device_type != "cpu"
        makes = makes or (isinstance(first, Sharded) and first.mesh is None)
        return makes and not any(trace.before(first, AcceleratorUsed))

    def _goes_by_its_tensor(self, trace: Trace, event: Event) -> bool:
        """Whether it runs on the device of its tensor, and the program names that, or puts nothing on any in sight.

        So do those of a mesh, but for what `fully_shard` moves, which goes to the device of the process.
        """
        named = any(trace.before(event, DeviceNamed))
        if isinstance(event, CollectiveCalled):
            return "object" not in event.op and (named or not any(trace.before(event, AcceleratorUsed)))
        sharded = itertools.chain(trace.before(event, Sharded), trace.after(event, Sharded))
        return named and isinstance(event, MeshCreated) and not any(sharded)


# How programs write the number of a rank along a dimension of a mesh.
_PLACE_IN_MESH = re.compile(r"get_local_rank\(['\"\w]|\]\.get_(local_)?rank\(|(tp|pp|cp|ep|sp|shard|repl\w*)_?rank")


class RankGuardedCollective(Rule):
    """A collective waits for every rank of its group; under a condition on the rank some never come."""

    code = "FS102"
    name = "rank-guarded-collective"
    severity = Severity.ERROR
    clause = 1

    def check(self, trace: Trace) -> Iterator[Finding]:
        for event in trace.of(Event):
            if not event.collective or event.when.only is None or self._group_unknown(trace, event):
                continue
            if isinstance(event, StateTaken | StateApplied) and unsharded(trace, event):
                continue
            if self._of_these_ranks(trace, event) or self._along_mesh(trace, event):
                continue
            message = (
                f"not every rank reaches {_described(event)} (only `{event.when.only}`), and those that do wait for "
                "the others for ever. Call it on every rank; guard only what one rank prints or writes."
            )
            yield self.finding(event, message, (event.when.asked, "only these ranks go on here"))

    def _of_these_ranks(self, trace: Trace, event: Event) -> bool:
        """Whether the model is one that just these ranks have sharded, over a mesh of theirs."""
        modules: tuple[Ref, ...] = ()
        if isinstance(event, ForwardEntered):
            modules = (event.module,)
        elif isinstance(event, GradientsClipped):
            modules = event.modules
        elif isinstance(event, StateTaken):
            modules = event.of
        before = list(trace.before(event, Sharded))
        sharded = [s for s in before if any(trace.related(s.module, module) for module in modules)]
        return bool(sharded) and all(s.when.only is not None and s.mesh is not None for s in sharded)

    def _along_mesh(self, trace: Trace, event: Event) -> bool:
        """Whether the ranks are told by their place along one of several dimensions of a mesh.

        What is sharded may be gathered along another one, which holds all that are let in.
        """
        if isinstance(event, CollectiveCalled) and event.op != "full_tensor":
            return False
        several = any(made.shape is not None and len(made.shape) > 1 for made in trace.before(event, MeshCreated))
        return several and _PLACE_IN_MESH.search(event.when.only or "") is not None

    def _group_unknown(self, trace: Trace, event: Event) -> bool:
        """With a group of its own, the ranks that are let in may be just the members, unless all ranks are."""
        if not isinstance(event, Saved | AsyncSaved | Loaded | CollectiveCalled) or event.group is None:
            return False
        return not any(made.everyone and made.group == event.group for made in trace.before(event, GroupCreated))


class RankDivergentDecision(Rule):
    """What a rank sees of a file system, and what its clock says, need not be what the others see."""

    code = "FS103"
    name = "rank-divergent-decision"
    severity = Severity.ERROR
    clause = 1
    seen_by = frozenset({READER})

    def check(self, trace: Trace) -> Iterator[Finding]:
        if not self._distributed(trace):
            return
        told = set[int]()  # the conditions that a finding has named
        for event in trace.of(Event):
            if not event.collective or event.when.only is not None:
                continue
            for choice in event.when.path:
                question = choice.question
                if question is None or choice.condition in told or not self._concerns(question, event):
                    continue
                told.add(choice.condition)
                if self._joined(trace, event, choice):
                    continue
                what = "sees the files that are there" if question.about == "files" else "reads the clock"
                message = (
                    f"each rank {what} for itself (`{question.words}`) to decide whether it comes to "
                    f"{_described(event)}: where the answers differ, those that come wait for ever. Let rank 0 decide "
                    "and broadcast its answer (dist.broadcast_object_list)."
                )
                yield self.finding(event, message, (question.at, "decided here"))
                break

    def _distributed(self, trace: Trace) -> bool:
        """Whether the program shows that there are several ranks."""
        started = list(trace.of(GroupInitialised))
        shown = any(one.world_size != 1 for one in started) if started else any(trace.of(MeshCreated, Sharded))
        return shown or (not started and any(trace.of(CollectiveCalled)))

    def _concerns(self, question: Question, event: Event) -> bool:
        """Of files, whether it is about a checkpoint: that training finds what it is given is taken for granted."""
        if question.about == "clock":
            return True
        if isinstance(event, Loaded):
            return not event.pretrained
        return isinstance(event, Saved | AsyncSaved | StateTaken | StateApplied)

    def _joined(self, trace: Trace, event: Event, choice: Choice) -> bool:
        """Whether those who answer otherwise come to a like collective, or load in another way."""
        others = (e for e in trace.of(Event) if Choice(choice.condition, not choice.taken) in e.when.path)
        return any(
            (type(e) is type(event) and getattr(e, "op", None) == getattr(event, "op", None))
            or (isinstance(event, Loaded | StateApplied) and isinstance(e, TorchLoaded | StateApplied))
            for e in others
        )


class HardCodedMeshSize(Rule):
    """A mesh of fixed sizes is made for one number of ranks, and the launcher may start any."""

    code = "FS209"
    name = "hard-coded-mesh-size"
    severity = Severity.WARN
    clause = 2
    seen_by = frozenset({READER})

    def check(self, trace: Trace) -> Iterator[Finding]:
        sizes = {started.world_size for started in trace.of(GroupInitialised)}
        for mesh in trace.of(MeshCreated):
            if not mesh.literal or mesh.shape is None or None in mesh.shape or in_tests(mesh):
                continue
            ranks = math.prod(size for size in mesh.shape if size is not None)
            if ranks == 1 or ranks in sizes:
                continue
            message = (
                f"this mesh is made for exactly {ranks} ranks: with fewer torch raises, with more the others have no "
                "place in it and go on without. Take one size from the world size, as in "
                "(dist.get_world_size() // tp, tp)."
            )
            yield self.finding(mesh, message)


class CpuBackendMissing(Rule):
    """NCCL moves tensors of GPUs only; asynchronous saves, and clipping what lies on the host, need more."""

    code = "FS104"
    name = "cpu-backend-missing"
    severity = Severity.ERROR
    clause = 10
    seen_by = frozenset({READER})

    def check(self, trace: Trace) -> Iterator[Finding]:
        started = list(trace.of(GroupInitialised))
        if started and all(_gpus_only(one.backend) for one in started):
            for one in started:
                found = self._save(trace, one, None) or self._clipping(trace, one)
                if found is not None:
                    yield self._missing(one, *found)
        for group in trace.of(GroupCreated):
            inherited = group.inherits and any(_gpus_only(one.backend) for one in trace.before(group, GroupInitialised))
            if (inherited or _gpus_only(group.backend)) and (found := self._save(trace, group, group.group)):
                yield self._missing(group, *found)

    def _missing(self, made: GroupInitialised | GroupCreated, needs: Event, what: str) -> Finding:
        instead = (
            'Initialise it by init_process_group("cpu:gloo,cuda:nccl").'
            if isinstance(made, GroupInitialised)
            else 'Create it by new_group(backend="gloo").'
        )
        return self.finding(
            made, f"this process group has NCCL alone, but {what} and raises. {instead}", (needs, "here")
        )

    def _save(self, trace: Trace, made: Event, group: Ref | None) -> tuple[Event, str] | None:
        saved = next((s for s in trace.after(made, AsyncSaved) if s.group == group), None)
        return (saved, "async_save asks for one that works on the CPU too") if saved is not None else None

    def _clipping(self, trace: Trace, made: Event) -> tuple[Event, str] | None:
        for clipped in trace.after(made, GradientsClipped):
            for sharded in trace.before(clipped, Sharded):
                if sharded.offload is True and any(trace.related(sharded.module, m) for m in clipped.modules):
                    return clipped, "the norm of gradients that CPUOffloadPolicy keeps on the CPU is reduced there"
        return None


class GroupNeverDestroyed(Rule):
    """Where a process ends while its peers still talk to it, they may fail, and what it leaves open is leaked."""

    code = "FS105"
    name = "group-never-destroyed"
    severity = Severity.INFO
    clause = 1

    def check(self, trace: Trace) -> Iterator[Finding]:
        if any(trace.of(GroupDestroyed)) or not any(trace.of(Exited)) or not concluded(trace):
            return
        for initialised in trace.of(GroupInitialised):
            message = (
                "this process group is never destroyed: a rank that ends earlier than the others takes their "
                "connections with it, and torch warns that resources leak. End the program by "
                "dist.destroy_process_group(), after the last asynchronous save was awaited."
            )
            yield self.finding(initialised, message)


def _gpus_only(backend: str | None) -> bool:
    """Whether a backend is NCCL and has none for tensors on the CPU beside it."""
    parts = (backend or "").lower().split(",")
    return all(part.strip() in ("nccl", "cuda:nccl") for part in parts)


def _described(event: Event) -> str:
    match event:
        case MeshCreated():
            return "the creation of a mesh"
        case GroupCreated():
            return "the creation of a process group"
        case CollectiveCalled():
            return f"`{event.op}`"
        case ForwardEntered():
            return f"the forward of the sharded `{event.module.name}`"
        case GradientsClipped():
            return "the clipping of sharded gradients"
        case StateTaken():
            return "the gathering of a full state dict"
        case StateApplied():
            return "the distribution of a full state dict"
        case Saved():
            return "the save"
        case AsyncSaved():
            return "the asynchronous save"
        case Loaded():
            return "the load"
    raise AssertionError(event)
