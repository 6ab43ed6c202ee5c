"""FS7: what a load is given to fill, and what becomes of it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ..events import (
    AsyncSaved,
    Entry,
    Escaped,
    Kind,
    Loaded,
    LoadedValueRead,
    OptimizerBuilt,
    Saved,
    StateApplied,
    Stepped,
    TrainingLoop,
    Via,
)
from ..findings import Finding, Severity
from ..trace import Trace, together
from .base import OF_OTHER_THINGS, READER, Rule, concluded, eager, has_state, quoted


class OptimizerLoadedLazily(Rule):
    """DCP fills the tensors it is given; an optimizer that never stepped has none to give."""

    code = "FS701"
    name = "optimizer-loaded-lazily"
    severity = Severity.ERROR
    clause = 7

    def check(self, trace: Trace) -> Iterator[Finding]:
        for loaded in trace.of(Loaded):
            empty = [e for e in loaded.entries or () if self._empty(trace, loaded, e)]
            if not empty:
                continue
            message = (
                f"{quoted(empty)} is the optimizer's own state dict and still empty, as it has not stepped yet: "
                "nothing is requested and nothing restored. Load into get_optimizer_state_dict(model, optimizer), "
                "which creates the state, and apply it by set_optimizer_state_dict."
            )
            built = [b for b in trace.before(loaded, OptimizerBuilt) if any(b.optimizer == e.of for e in empty)]
            yield self.finding(loaded, message, *((b, "built here") for b in built))

    def _empty(self, trace: Trace, loaded: Loaded, entry: Entry) -> bool:
        optimizer = entry.of
        if entry.kind is not Kind.OPTIMIZER or entry.via not in (Via.OBJECT, Via.METHOD) or optimizer is None:
            return False
        built = [b for b in trace.before(loaded, OptimizerBuilt) if b.optimizer == optimizer]
        if not built or any(b.stateless or eager(b) for b in built):
            return False
        return not has_state(trace, optimizer, loaded) and not trace.escaped(optimizer)


# What a run counts, or compares with, and must go on from.
_PROGRESS = re.compile(r"step|epoch|iter|batch|token|sample|seen|consumed|processed|best|counter", re.IGNORECASE)


class LoadedButNotApplied(Rule):
    """A load fills a dictionary; what of it is not the object's own memory must be given back to the object."""

    code = "FS702"
    name = "loaded-but-not-applied"
    severity = Severity.ERROR
    clause = 7

    def check(self, trace: Trace) -> Iterator[Finding]:
        if not concluded(trace):
            return
        for loaded in trace.of(Loaded):
            if loaded.state is not None and trace.escaped(loaded.state, since=loaded):
                continue
            left = [e for e in loaded.entries or () if self._left(trace, loaded, e)]
            if not left:
                continue
            names = ", ".join(dict.fromkeys(f"`{e.of.name}`" for e in left if e.of is not None))
            message = (
                f"{quoted(left)} is loaded into a state dict that is never given back to {names}: Python values in it "
                "(learning rate, step, position) and copied tensors are lost. Call set_state_dict, or load_state_dict "
                "of what it came from."
            )
            yield self.finding(loaded, message)

    def _left(self, trace: Trace, loaded: Loaded, entry: Entry) -> bool:
        if entry.of is None or entry.via not in (Via.METHOD, Via.HELPER):
            return False
        # Tensors of a sharded state dict are the object's own; Python values beside them never are.
        copied = entry.kind in (Kind.OPTIMIZER, Kind.SCHEDULER, Kind.LOADER)
        copied = copied or (entry.kind is Kind.MODEL and entry.aliased is False)
        applied = any(entry.of in a.to for a in trace.after(loaded, StateApplied))
        return copied and not applied and not trace.escaped(entry.of, since=loaded)


class LoadedValueNotReadBack(Rule):
    """A dictionary holds the number, not the variable: a load changes the one and leaves the other."""

    code = "FS703"
    name = "loaded-value-not-read-back"
    severity = Severity.ERROR
    clause = 8
    seen_by = frozenset({READER})

    def check(self, trace: Trace) -> Iterator[Finding]:
        for loaded in trace.of(Loaded):
            if loaded.state is None or trace.escaped(loaded.state, since=loaded):
                continue
            reads = [r for r in trace.after(loaded, LoadedValueRead) if r.state == loaded.state]
            read_back = {r.key for r in reads if not r.stale}
            told: set[str | None] = set()
            for read in reads:
                known = read.key is None or read.key in read_back or None in read_back or read.key in told
                if not read.stale or known or not _PROGRESS.search(read.key or ""):
                    continue
                told.add(read.key)
                message = (
                    f"`{read.key}` is loaded into the dictionary and never read from it: `{read.name}` is still what "
                    f"it was before the load, and the run goes on from there. Read it back: "
                    f"`{read.name} = {loaded.state.name}[{read.key!r}]`."
                )
                yield self.finding(loaded, message, (read, f"`{read.name}` is used here"))
        yield from self._counted_anew(trace)

    def _counted_anew(self, trace: Trace) -> Iterator[Finding]:
        """Loops that go on counting from a constant, though what they count by is saved in them and loaded before."""
        for loop in trace.of(TrainingLoop):
            if not loop.anew or loop.counter is None:
                continue
            loads = (r for r in trace.of(Loaded) if r.order < loop.since and together(r, loop))
            saves = [s for s in trace.of(Saved, AsyncSaved) if loop.since <= s.order < loop.order and together(s, loop)]
            keys = {e.key for s in saves for e in s.entries or () if self._is_count(e, loop.counter)}
            for loaded in loads:
                entries = loaded.entries or ()
                key = next((e.key for e in entries if e.key in keys and self._is_count(e, loop.counter)), None)
                if key is None or not any(e.kind is Kind.OPTIMIZER for e in entries):
                    continue
                message = (
                    f"`{key}` is loaded and never put into `{loop.counter}`, which is set to constants alone: "
                    f"after a resume the loop counts from {loop.start} as before. Set it from what was loaded."
                )
                yield self.finding(loaded, message, (loop, f"counts from {loop.start} here"))
                break

    def _is_count(self, entry: Entry, counter: str) -> bool:
        of_another = OF_OTHER_THINGS.search(entry.key) is not None
        return entry.kind is Kind.VALUE and entry.key.rpartition(".")[2] == counter and not of_another


class SavedKeysNotRequested(Rule):
    """A load brings back what it is asked for; what else the checkpoint holds stays there, and nothing is said."""

    code = "FS704"
    name = "saved-keys-not-requested"
    severity = Severity.WARN
    clause = 8

    def check(self, trace: Trace) -> Iterator[Finding]:
        for loaded in trace.of(Loaded):
            if next(trace.after(loaded, Stepped), None) is None:
                continue
            loads, saves = list(trace.of(Loaded)), list(trace.of(Saved, AsyncSaved))
            if any(e.series is not None and e.series == loaded.series for e in saves):
                loads = [e for e in loads if e.series == loaded.series]
                saves = [e for e in saves if e.series == loaded.series]
            elif not self._goes_on(loaded):
                continue
            if any(self._unclear(e.entries) for e in (*loads, *saves)):
                continue
            requested = {_top(entry) for e in loads for entry in e.entries or ()}
            saved = next((e for e in saves if self._left(e.entries, requested)), None)
            if saved is None or not requested:
                continue
            left = ", ".join(f"`{key}`" for key in dict.fromkeys(map(_top, self._left(saved.entries, requested))))
            message = (
                f"{left} is saved to the checkpoints of this run and asked for by no load of them: the run goes on as "
                "if it had never been. Put it into the dictionary that is loaded, and read it back."
            )
            yield self.finding(loaded, message, (saved, "saved here"))

    def _goes_on(self, loaded: Loaded) -> bool:
        """Whether it is no other run's weights that are loaded, to begin with: it asks how far that run had come."""
        return any(e.kind is Kind.VALUE and _PROGRESS.search(e.key) for e in loaded.entries or ())

    def _unclear(self, entries: tuple[Entry, ...] | None) -> bool:
        return entries is None or any(_top(entry) in ("", "*") for entry in entries)

    def _left(self, entries: tuple[Entry, ...] | None, requested: set[str]) -> list[Entry]:
        """What a save holds that the next step depends on and that no load asks for."""
        return [e for e in entries or () if _top(e) not in requested and self._matters(e)]

    def _matters(self, entry: Entry) -> bool:
        if entry.kind is Kind.VALUE:
            return _PROGRESS.search(entry.key) is not None
        return entry.kind in (Kind.MODEL, Kind.OPTIMIZER, Kind.SCHEDULER, Kind.LOADER)


def _top(entry: Entry) -> str:
    """The key that an entry lies under."""
    return entry.key.partition(".")[0]


class IncompleteCheckpointChosen(Rule):
    """A save that died leaves a directory like any other, and it is the newest."""

    code = "FS706"
    name = "incomplete-checkpoint-chosen"
    severity = Severity.ERROR
    clause = 9

    def check(self, trace: Trace) -> Iterator[Finding]:
        for loaded in trace.of(Loaded):
            if loaded.whole is not False:
                continue
            chosen = "is chosen among the entries of a folder without a look whether it is whole"
            message = (
                f"the checkpoint {chosen if trace.origin == READER else 'has no metadata: its save was not finished'}. "
                "A save that died leaves its directory behind, the newest of all, and each restart fails on it. "
                "Choose among those that have a `.metadata` file, which DCP writes last."
            )
            yield self.finding(loaded, message)


class CheckpointExceptionNotCaught(Rule):
    """What DCP raises is no `Exception`: a handler for those lets it pass."""

    code = "FS707"
    name = "checkpoint-exception-not-caught"
    severity = Severity.WARN
    clause = 10
    seen_by = frozenset({READER})

    def check(self, trace: Trace) -> Iterator[Finding]:
        for event in trace.of(Saved, Loaded):
            if event.caught is None:
                continue
            what = "load" if isinstance(event, Loaded) else "save"
            message = (
                f"a {what} that fails raises CheckpointException, which is a BaseException: `except {event.caught}` "
                "does not take it, what is to happen then does not, and the program ends. "
                "Catch (Exception, torch.distributed.checkpoint.CheckpointException)."
            )
            yield self.finding(event, message)


class RankKeysBlockResharding(Rule):
    """A key for each rank is there for the ranks that saved; one more rank asks for one that is not."""

    code = "FS710"
    name = "rank-keys-block-resharding"
    severity = Severity.WARN
    clause = 11
    seen_by = frozenset({READER})

    def check(self, trace: Trace) -> Iterator[Finding]:
        for loaded in trace.of(Loaded):
            if loaded.partial is not False or loaded.looked_into or loaded.alone:
                continue
            earlier = trace.before(loaded, Saved, AsyncSaved)  # by the same ranks
            if not self._by_rank(loaded.entries) or any(self._by_rank(e.entries) for e in earlier):
                continue
            message = (
                "a key of this load names the rank: on more ranks than have saved, the new ones ask for keys that the "
                "checkpoint does not have, and the whole load fails. Look into its metadata first "
                "(FileSystemReader(path).read_metadata()), and start without the state of a rank that was not there."
            )
            yield self.finding(loaded, message)

    def _by_rank(self, entries: tuple[Entry, ...] | None) -> bool:
        return any(entry.by_rank for entry in entries or ())


class LoadedIntoNothing(Rule):
    """DCP fills what it is given; it does not make up what it is not given."""

    code = "FS712"
    name = "loaded-into-nothing"
    severity = Severity.ERROR
    clause = 7

    def check(self, trace: Trace) -> Iterator[Finding]:
        for loaded in trace.of(Loaded):
            if loaded.entries != () or loaded.partial is None:
                continue
            if any(e.of == loaded.state for e in trace.before(loaded, Escaped)):
                continue  # whoever had it may have filled it
            message = (
                "the dictionary that is loaded into is empty, and DCP only fills what it finds there: nothing is read, "
                "nothing is said. Give it the state to be filled: "
                '{"model": get_model_state_dict(model)}.'
            )
            yield self.finding(loaded, message)


class CheckpointWithoutLocation(Rule):
    """A save or a load that does not say where raises as soon as it is reached."""

    code = "FS713"
    name = "checkpoint-without-location"
    severity = Severity.ERROR
    clause = 7

    def check(self, trace: Trace) -> Iterator[Finding]:
        for event in trace.of(Saved, AsyncSaved, Loaded):
            if event.located:
                continue
            what = "storage_reader" if isinstance(event, Loaded) else "storage_writer"
            yield self.finding(
                event,
                "neither a directory nor a storage is given, so this raises when it is reached. "
                f"Pass checkpoint_id=, or {what}=.",
            )
