"""FS8: saves that go on while the program does."""

from __future__ import annotations

from collections.abc import Iterator

from ..events import (
    AsyncSaved,
    Awaited,
    CollectiveCalled,
    Event,
    ForwardEntered,
    GradientsClipped,
    GroupInitialised,
    Loaded,
    MeshCreated,
    Ref,
    Saved,
    Sharded,
    StagerBuilt,
    Stepped,
)
from ..findings import Finding, Severity
from ..trace import Trace, together
from .base import Rule, concluded


class AsyncSaveNotAwaited(Rule):
    """A failure of an asynchronous save is in its future, and nowhere else."""

    code = "FS801"
    name = "async-save-not-awaited"
    severity = Severity.ERROR
    clause = 10

    def check(self, trace: Trace) -> Iterator[Finding]:
        if not concluded(trace):
            return
        for saved in trace.of(AsyncSaved):
            if any(a.future == saved.future for a in trace.after(saved, Awaited)) or trace.escaped(saved.future):
                continue
            if self._awaited_by_the_last(trace, saved):
                continue
            message = (
                "this asynchronous save may never be awaited: if it fails nothing tells, and the program may end "
                "before it is written. Keep its future and call .result() before the program ends."
            )
            yield self.finding(saved, message)

    def _awaited_by_the_last(self, trace: Trace, saved: AsyncSaved) -> bool:
        """Whether the last save of all is one that the program stands still for, after it awaited the one before."""
        return any(
            last.final
            and last.at.file == saved.at.file
            and any(trace.before(last, AsyncSaved))
            and any(trace.before(last, Awaited))
            for last in trace.of(Saved)
        )


class AsyncSavesOverlap(Rule):
    """Two saves at once make their collectives over one group in an order that differs from rank to rank."""

    code = "FS802"
    name = "async-saves-overlap"
    severity = Severity.ERROR
    clause = 10

    def check(self, trace: Trace) -> Iterator[Finding]:
        for second in trace.of(AsyncSaved):
            before = trace.before(second, AsyncSaved)
            earlier = [e for e in before if together(e, second) and not (e.once and second.when.loop)]
            if not earlier:
                continue
            first = earlier[-1]
            awaited = any(a.future == first.future for a in trace.between(first, second, Awaited))
            if awaited or trace.escaped(first.future):
                continue
            message = (
                "an asynchronous save starts while the one before it may still run: they disturb each other's "
                "collectives and files. Call .result() on the earlier save's future first."
            )
            yield self.finding(second, message, (first, "the earlier save"))


# Collectives of Python objects, and barriers, go over the CPU's backend also where there is an accelerator's beside it.
_ON_CPU = frozenset({
    "barrier", "monitored_barrier", "broadcast_object_list", "all_gather_object", "gather_object",
    "scatter_object_list",
})  # fmt: skip


class AsyncSaveSharesGroup(Rule):
    """The background save and the program make their collectives over one group, in no certain order."""

    code = "FS803"
    name = "async-save-shares-group"
    severity = Severity.ERROR
    clause = 10

    def check(self, trace: Trace) -> Iterator[Finding]:
        for saved in trace.of(AsyncSaved):
            if saved.group is not None or saved.alone or saved.process is not False or trace.escaped(saved.future):
                continue
            shared = next(self._meanwhile(trace, saved), None)
            if shared is None:
                continue
            message = (
                "this asynchronous save makes its collectives in a thread and over the default process group, which "
                "the program uses meanwhile: where the ranks get to them in another order they pair up wrongly, and "
                'the job hangs or dies. Give the save a group of its own: process_group=dist.new_group(backend="gloo").'
            )
            yield self.finding(saved, message, (shared, "the program uses the group here"))

    def _meanwhile(self, trace: Trace, saved: AsyncSaved) -> Iterator[Event]:
        """What the program does over the same backend of the same group before it waits for the save."""
        for event in trace.after(saved, CollectiveCalled, ForwardEntered, GradientsClipped, Saved, Loaded):
            if any(a.future == saved.future for a in trace.between(saved, event, Awaited)):
                continue
            if event.collective and event.when.main_thread and self._over_the_group(trace, event):
                yield event

    def _over_the_group(self, trace: Trace, event: Event) -> bool:
        if isinstance(event, Saved | Loaded):
            return event.group is None
        if isinstance(event, CollectiveCalled) and event.group is None and event.op in _ON_CPU:
            return True
        backends = [g.backend for g in trace.before(event, GroupInitialised)]
        if not backends or any(backend not in ("gloo", "cpu:gloo") for backend in backends):
            return False
        if isinstance(event, CollectiveCalled):
            return event.group is None and event.op != "full_tensor"
        if not isinstance(event, ForwardEntered | GradientsClipped):
            return False
        modules = event.modules if isinstance(event, GradientsClipped) else (event.module,)
        sharded = [s for s in trace.before(event, Sharded) if any(trace.related(s.module, m) for m in modules)]
        meshes = {m.mesh: m.shape for m in trace.of(MeshCreated)}
        shapes = [meshes.get(s.mesh) for s in sharded if s.mesh is not None]
        return bool(sharded) and all(shape is not None and len(shape) == 1 for shape in shapes)


class MainGuardMissing(Rule):
    """The process that writes begins by importing the main module; what is not guarded there runs once more."""

    code = "FS804"
    name = "main-guard-missing"
    severity = Severity.ERROR
    clause = 10

    def check(self, trace: Trace) -> Iterator[Finding]:
        for saved in trace.of(AsyncSaved):
            if saved.process is not True or saved.imported is not True:
                continue
            message = (
                "AsyncCheckpointerType.PROCESS starts a process that imports the main module, and that runs the "
                "training again, up to here: the job hangs. Put what starts the training under "
                '`if __name__ == "__main__":`.'
            )
            yield self.finding(saved, message)


class StagerBuiltInLoop(Rule):
    """A stager keeps the memory that it copies into; a new one for each save pins and maps it all anew."""

    code = "FS805"
    name = "stager-built-in-loop"
    severity = Severity.WARN
    clause = 10

    def check(self, trace: Trace) -> Iterator[Finding]:
        built = {b.stager: b for b in trace.of(StagerBuilt)}
        for second in trace.of(AsyncSaved):
            stager = built.get(second.stager) if second.stager is not None else None
            if stager is None:
                continue
            earlier = (s for s in trace.before(second, AsyncSaved) if s.at == second.at and s.stager != second.stager)
            first = next((s for s in earlier if self._again(built, s, stager)), None)
            if first is None:
                continue
            message = (
                "a stager is built for each save: each one pins and maps memory for the whole state anew, and starts "
                "a thread. Build it once, give it to every save, and close() it after the last."
            )
            yield self.finding(stager, message, (second, "used here"))

    def _again(self, built: dict[Ref, StagerBuilt], first: AsyncSaved, stager: StagerBuilt) -> bool:
        """Whether the stager was built where that of the earlier save was, after that save."""
        before = built.get(first.stager) if first.stager is not None else None
        return before is not None and before.at == stager.at and first.order < stager.order


class StagingNotAwaitedBeforeStep(Rule):
    """A stager that works in the background copies the parameters while the optimizer changes them."""

    code = "FS806"
    name = "staging-not-awaited-before-step"
    severity = Severity.ERROR
    clause = 10

    def check(self, trace: Trace) -> Iterator[Finding]:
        for saved in trace.of(AsyncSaved):
            if saved.staging is None or trace.escaped(saved.staging) or trace.escaped(saved.future):
                continue
            for stepped in trace.after(saved, Stepped):
                awaited = [a for a in trace.after(saved, Awaited) if self._before(a, stepped)]
                if any(a.future in (saved.staging, saved.future) for a in awaited):
                    break
                message = (
                    f"`{stepped.optimizer.name}` may step while the stager of this save still copies the state in the "
                    "background: the checkpoint then holds some weights from before the step and some from after. "
                    "Call .staging_completion.result() on what async_save returns before the next step."
                )
                yield self.finding(saved, message, (stepped, "steps here"))
                break

    def _before(self, awaited: Awaited, stepped: Stepped) -> bool:
        """Whether the wait is over before the step changes anything: a hook of the optimizer's may be what waits."""
        if awaited.when.step is not None and stepped.when.step is not None:
            return awaited.when.step <= stepped.when.step
        return awaited.order < stepped.order and together(awaited, stepped)
