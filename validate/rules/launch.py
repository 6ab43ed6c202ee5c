"""FS1: launch, process groups, and which rank does what."""

from __future__ import annotations

from collections.abc import Iterator

from ..events import (
    AcceleratorUsed,
    AsyncSaved,
    CollectiveCalled,
    DeviceSet,
    Escaped,
    Event,
    ForwardEntered,
    GradientsClipped,
    GroupCreated,
    GroupInitialised,
    Loaded,
    MeshCreated,
    ModuleBuilt,
    Saved,
    Sharded,
    StateApplied,
    StateTaken,
)
from ..findings import Finding, Severity
from ..trace import Trace
from .base import READER, Rule


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
            first = next((e for e in trace.after(initialised, Event) if e.collective or isinstance(e, Sharded)), None)
            if first is None or any(trace.before(first, DeviceSet)) or self._set_by_mesh(trace, first):
                continue
            message = (
                "NCCL is initialised, but no process chooses its GPU before the first collective: all processes of a "
                'machine use the first one. Call torch.cuda.set_device(int(os.environ["LOCAL_RANK"])) here.'
            )
            yield self.finding(initialised, message, (first, "first collective"))

    def _set_by_mesh(self, trace: Trace, first: Event) -> bool:
        """Whether `first` makes a mesh, which sets the device itself, unless the accelerator is in use already."""
        makes = isinstance(first, MeshCreated) and first.device_type != "cpu"
        makes = makes or (isinstance(first, Sharded) and first.mesh is None)
        return makes and not any(trace.before(first, AcceleratorUsed))


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
            if isinstance(event, StateTaken | StateApplied) and self._plain(trace, event):
                continue
            message = (
                f"not every rank reaches {_described(event)} (only `{event.when.only}`), and those that do wait for "
                "the others for ever. Call it on every rank; guard only what one rank prints or writes."
            )
            yield self.finding(event, message)

    def _plain(self, trace: Trace, event: StateTaken | StateApplied) -> bool:
        """Whether the state is of modules that are not sharded yet, so that each rank has all of it."""
        of = event.of if isinstance(event, StateTaken) else event.to
        return all(
            not any(trace.related(s.module, module) for s in trace.before(event, Sharded))
            and (
                any(trace.related(s.module, module) for s in trace.after(event, Sharded))
                or (
                    any(b.module == module for b in trace.before(event, ModuleBuilt))
                    and not any(e.of == module for e in trace.before(event, Escaped))
                )
            )
            for module in of
        )

    def _group_unknown(self, trace: Trace, event: Event) -> bool:
        """With a group of its own, the ranks that are let in may be just the members, unless all ranks are."""
        if not isinstance(event, Saved | AsyncSaved | Loaded | CollectiveCalled) or event.group is None:
            return False
        return not any(made.everyone and made.group == event.group for made in trace.before(event, GroupCreated))


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
