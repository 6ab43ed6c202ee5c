"""Makes traces of what the ranks of a run wrote, with what can only be said by comparing them."""

from __future__ import annotations

import bisect
import dataclasses
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..events import (
    AsyncSaved,
    Backward,
    BatchesDrawn,
    Entry,
    Event,
    Form,
    ForwardEntered,
    GroupCreated,
    Kind,
    Loaded,
    Location,
    Narrowed,
    SamplerBuilt,
    Saved,
    Seeded,
    Stepped,
    from_json,
)
from ..launch.job import RankEnd, Run
from ..launch.places import Places
from ..trace import Note, Trace
from .parting import Call, parted
from .rounds import Line, Stack, Way, more_rounds
from .rounds import mark as mark_round
from .weights import Weight, differ

STUCK = 0.2  # part of the deadline for which a rank must have stood in a collective to count as stuck in it
STUCK_SECONDS = 1.0  # and at least so long
SAME_STEPS = 3  # steps that a run must have for ranks that are given the same samples in each not to be so by chance


@dataclass
class _Record:
    """What one rank wrote, sorted out."""

    events: dict[int, dict[str, Any]] = field(default_factory=dict)
    entered: dict[int, float] = field(default_factory=dict)  # order: when, on the machine's monotonic clock
    returned: set[int] = field(default_factory=set)
    stacks: dict[int, Stack] = field(default_factory=dict)  # order: by which calls of the program's it was entered
    digests: dict[int, dict[str, int]] = field(default_factory=dict)
    batches: dict[int, int] = field(default_factory=dict)  # order: digest of the first batch
    lengths: dict[int, int] = field(default_factory=dict)  # order: how many batches this pass has
    beginnings: dict[int, dict[str, int]] = field(default_factory=dict)  # order: digests of weights by FQN
    buffers: dict[int, dict[str, dict[str, int]]] = field(default_factory=dict)  # order: digests by key and name
    narrowed: dict[int, dict[str, list[str]]] = field(default_factory=dict)  # order: dtypes by path of the tensor
    updated: dict[int, tuple[bool, bool]] = field(default_factory=dict)  # order: changed something, had gradients
    weights: dict[int, Weight] = field(default_factory=dict)  # order: of one element in the loss
    called: dict[int, list[Call]] = field(default_factory=dict)  # order of the program's call: of sharded modules
    seeds: dict[int, int] = field(default_factory=dict)  # order: what the generators were seeded with
    peers: list[set[int]] = field(default_factory=list)  # of each sharding: ranks over which gradients are averaged
    samples: dict[int, tuple[int, ...]] = field(default_factory=dict)  # step: digests of what the model was given
    names: dict[int, str] = field(default_factory=dict)
    edges: list[tuple[int, int, str]] = field(default_factory=list)  # held, holder, attribute
    partial: set[int] = field(default_factory=set)  # groups that not all ranks belong to
    failures: list[str] = field(default_factory=list)


def merge(run: Run) -> tuple[Trace, ...]:
    """One trace a rank, in the order of ranks. Events that not all ranks reach are marked (`when.only`)."""
    places = Places(run.records.parent)
    records = [_read(places.records(end.rank)) for end in run.ends]
    events = [_events(record) for record in records]
    _mark_per_rank(records, events)
    _mark_alike(records, events)
    _mark_samples(records, events)
    _mark_beginnings(records, events)
    _mark_seeds(records, events)
    _mark_buffers(records, events)
    _mark_updates(records, events)
    _mark_weights(records, events)
    apart = parted([r.called for r in records], [r.returned for r in records], events)
    if not _mark_alone(run, records, events, None if apart is None else apart.orders) and apart is not None:
        apart.mark(events, [_Names(record).of for record in records])
    return tuple(
        Trace(
            origin="probe",
            events=tuple(events[end.rank]),
            holders=_holders(record),
            notes=tuple(Note(Location("<probe>", 1), text) for text in record.failures),
            ended=_ended(end, record),
            ranks=len(run.ends),
        )
        for end, record in zip(run.ends, records, strict=True)
    )


def _read(path: Path) -> _Record:
    record, stacks = _Record(), dict[int, Stack]()
    for line in path.read_text().splitlines() if path.exists() else ():
        fields = json.loads(line)
        match fields.get("note"):
            case None:
                record.events[fields["order"]] = fields
            case "stack":
                stacks[fields["id"]] = tuple(Line(*frame) for frame in fields["frames"])
            case "entered":
                record.entered[fields["order"]] = fields["time"]
                record.stacks[fields["order"]] = stacks.get(fields.get("stack", -1), ())
            case "returned":
                record.returned.add(fields["order"])
            case "digests":
                record.digests[fields["order"]] = fields["of"]
            case "length":
                record.lengths[fields["order"]] = fields["batches"]
            case "batch":
                record.batches[fields["order"]] = fields["digest"]
            case "beginning":
                record.beginnings[fields["order"]] = fields["of"]
            case "buffers":
                record.buffers[fields["order"]] = fields["of"]
            case "narrowed":
                record.narrowed[fields["order"]] = fields["of"]
            case "updated":
                record.updated[fields["order"]] = fields["changed"], fields["gradients"]
            case "weight":
                record.weights[fields["order"]] = Weight(fields["of_each"], fields["chosen"])
            case "called":
                call = Call(fields["number"], fields["id"], Location(*fields["at"]))
                record.called.setdefault(fields["order"], []).append(call)
            case "peers":
                record.peers.append(set(fields["of"]))
            case "figures":
                record.samples[fields["figures"]["step"]] = tuple(fields["figures"]["samples"])
            case "seed":
                record.seeds[fields["order"]] = fields["seed"]
            case "name":
                record.names.setdefault(fields["id"], fields["name"])
            case "held":
                record.edges += [(inner, outer, name) for inner, outer, name in fields["edges"]]
            case "group":
                record.partial.add(fields["id"])
            case "failure":
                record.failures.append(fields["text"])
    return record


def _events(record: _Record) -> list[Event]:
    """The events in order, each ref under the best name known, and calls that never returned marked so."""
    names = _Names(record)
    events = []
    for order in sorted(record.events):
        fields = _renamed(record.events[order], names)
        event = from_json(fields)
        if order in record.entered and order not in record.returned:
            event = dataclasses.replace(event, when=dataclasses.replace(event.when, finished=False))
        if isinstance(event, Loaded) and order in record.narrowed:
            event = _narrowed(event, record.narrowed[order])
        events.append(event)
    return events


def _narrowed(event: Loaded, dtypes: Mapping[str, list[str]]) -> Loaded:
    """The load with what of its models and optimizers is given fewer bits than was saved."""

    def mark(entry: Entry) -> Entry:
        if entry.kind not in (Kind.MODEL, Kind.OPTIMIZER):
            return entry
        inside = f"{entry.key}." if entry.key else ""
        names = [name for name in dtypes if name.startswith(inside)]
        if not names:
            return entry
        stored, into = dtypes[names[0]]
        told = tuple(name.removeprefix(inside) for name in names)
        return dataclasses.replace(entry, narrowed=Narrowed(names=told, stored=stored, into=into))

    return dataclasses.replace(event, entries=tuple(map(mark, event.entries or ())))


class _Names:
    """How the program calls its objects: a module by its place in the model, anything else by its variable."""

    def __init__(self, record: _Record) -> None:
        self._variables = record.names
        self._holders: dict[int, tuple[int, str]] = {}
        for inner, outer, name in record.edges:
            if not name.startswith("_"):  # what torch keeps a wrapped module under says nothing to a user
                self._holders.setdefault(inner, (outer, name))

    def of(self, number: int) -> str | None:
        """The best name of an object, None where none is known."""
        path, seen = list[str](), set[int]()
        at = number
        while at in self._holders and at not in seen:
            seen.add(at)
            at, name = self._holders[at]
            path.append(name)
        if at in self._variables:
            return ".".join([self._variables[at], *reversed(path)])
        return self._variables.get(number)


def _renamed(value: Any, names: _Names) -> Any:
    if isinstance(value, list):
        return [_renamed(v, names) for v in value]
    if not isinstance(value, dict):
        return value
    if "id" in value and "name" in value:
        return {**value, "name": names.of(value["id"]) or value["name"]}
    return {key: _renamed(v, names) for key, v in value.items()}


def _holders(record: _Record) -> Mapping[int, frozenset[int]]:
    holders: dict[int, set[int]] = {}
    for inner, outer, _ in record.edges:
        holders.setdefault(inner, set()).add(outer)
    return {inner: frozenset(outer) for inner, outer in holders.items()}


def _ended(end: RankEnd, record: _Record) -> bool:
    """Whether the program of a rank came to its end by itself and not by a signal, an exception or the deadline.

    What happens in the process afterwards does not count: torch now and then aborts it while it is torn down.
    """
    return end.code is not None and end.error is None and (end.code == 0 or _exit_code(record) is not None)


def _exit_code(record: _Record) -> int | None:
    """The exit status that the program asked for when it ended, None where it never got there."""
    return next((fields["code"] for fields in record.events.values() if fields["event"] == "Exited"), None)


def _put(own: list[Event], marked: Event) -> None:
    """Put an event in the place of the one of its order."""
    own[bisect.bisect_left(own, marked.order, key=lambda event: event.order)] = marked


# --- values that differ from rank to rank ---


def _mark_per_rank(records: list[_Record], events: list[list[Event]]) -> None:
    """Mark the entries of saves whose values differ while their keys do not."""
    if len(records) < 2:
        return
    digests: dict[tuple[Any, ...], list[dict[str, int]]] = {}
    shards: dict[tuple[Any, ...], Counter[str]] = {}  # how many ranks save a part of something under each key
    saves = [list(_saves(one)) for one in events]
    for record, own in zip(records, saves, strict=True):
        for key, event in own:
            digests.setdefault(key, []).append(record.digests.get(event.order, {}))
            shards.setdefault(key, Counter()).update({e.key for e in event.entries or () if e.form is Form.LOCAL})
    for number, own in enumerate(saves):
        marked = {event.order: _compared(event, digests[key], shards[key]) for key, event in own}
        events[number][:] = [marked.get(event.order, event) for event in events[number]]


def _saves(events: list[Event]) -> Iterator[tuple[tuple[Any, ...], Saved | AsyncSaved]]:
    """The saves of one rank, each with what its counterparts on other ranks have in common with it."""
    counts: Counter[tuple[str, str | None]] = Counter()
    for event in events:
        if isinstance(event, (Saved, AsyncSaved)):
            key = (type(event).__name__, event.target)
            counts[key] += 1
            yield (*key, counts[key]), event


def _compared(event: Saved | AsyncSaved, digests: list[dict[str, int]], shards: Counter[str]) -> Event:
    if event.entries is None:
        return event

    def mark(entry: Entry) -> Entry:
        if entry.form is Form.LOCAL:
            return dataclasses.replace(entry, per_rank=shards[entry.key] > 1)
        values = [d[entry.key] for d in digests if entry.key in d]
        return dataclasses.replace(entry, per_rank=len(set(values)) > 1) if values else entry

    return dataclasses.replace(event, entries=tuple(mark(entry) for entry in event.entries))


def _mark_buffers(records: list[_Record], events: list[list[Event]]) -> None:
    """Mark the models in saves whose buffers differ from rank to rank."""
    digests: dict[tuple[Any, ...], dict[str, dict[str, set[int]]]] = {}
    saves = [list(_saves(one)) for one in events]
    for record, own in zip(records, saves, strict=True):
        for key, event in own:
            for model, of in record.buffers.get(event.order, {}).items():
                for name, crc in of.items():
                    digests.setdefault(key, {}).setdefault(model, {}).setdefault(name, set()).add(crc)
    for number, own in enumerate(saves):
        for key, event in own:
            apart = {
                model: [n for n, crcs in of.items() if len(crcs) > 1] for model, of in digests.get(key, {}).items()
            }
            if any(apart.values()):
                entries = tuple(
                    dataclasses.replace(e, apart=tuple(apart.get(e.key, ()))) if e.kind is Kind.MODEL else e
                    for e in event.entries or ()
                )
                _put(events[number], dataclasses.replace(event, entries=entries))


# --- steps that change nothing ---


def _mark_updates(records: list[_Record], events: list[list[Event]]) -> None:
    """Mark the steps by which something changed on any rank, or nothing on all of them."""
    for steps in zip(*([e for e in own if isinstance(e, Stepped)] for own in events), strict=False):
        found = [record.updated.get(step.order) for record, step in zip(records, steps, strict=True)]
        known = [one for one in found if one is not None]
        changed = any(one[0] for one in known)
        if not changed and len(known) < len(found):
            continue  # a rank does not look any more, or cannot
        gradients = any(one[1] for one in known)
        for own, step in zip(events, steps, strict=True):
            _put(own, dataclasses.replace(step, changed=changed, gradients=gradients))


# --- losses in which elements weigh more on some ranks ---


def _mark_weights(records: list[_Record], events: list[list[Event]]) -> None:
    """Mark the backwards from means over as many elements as each rank has, where ranks have different numbers."""
    backwards = [[e for e in own if isinstance(e, Backward)] for own in events]
    for one in zip(*backwards, strict=False):
        if len({e.at for e in one}) > 1:
            return
        weights = [record.weights.get(e.order) for record, e in zip(records, one, strict=True)]
        known = [weight for weight in weights if weight is not None]
        if len(known) == len(weights) and differ(known):
            for own, event in zip(events, one, strict=True):
                _put(own, dataclasses.replace(event, counted_alone=True))


# --- batches that are the same on all ranks ---


def _mark_alike(records: list[_Record], events: list[list[Event]]) -> None:
    """Mark the passes through a loader that begin with one batch on all ranks, or with different ones."""
    passes = [[e for e in own if isinstance(e, BatchesDrawn)] for own in events]
    if len(passes) < 2:
        return
    for drawn in zip(*passes, strict=False):
        digests = {record.batches.get(e.order) for record, e in zip(records, drawn, strict=True)}
        if None in digests or len({e.at for e in drawn}) > 1:
            continue
        for own, event in zip(events, drawn, strict=True):
            _put(own, dataclasses.replace(event, alike=len(digests) == 1))


def _mark_samples(records: list[_Record], events: list[list[Event]]) -> None:
    """Mark the first call that trains a model with whether ranks that average their gradients were given the same."""
    for rank, (record, own) in enumerate(zip(records, events, strict=True)):
        trained = next((event for event in own if isinstance(event, Backward)), None)
        if trained is None:
            continue
        called = [e for e in own if isinstance(e, ForwardEntered) and e.sharded and e.order < trained.order]
        if not called:
            continue
        peers = sorted((set.intersection(*record.peers) if record.peers else set[int]()) - {rank})
        others = any(
            samples and samples != theirs
            for peer in peers
            for step, samples in record.samples.items()
            if (theirs := records[peer].samples.get(step))
        )
        _put(own, dataclasses.replace(called[-1], same_samples=_same(records, record, peers), other_samples=others))


def _same(records: list[_Record], record: _Record, peers: list[int]) -> tuple[int, ...]:
    """Those of the ranks that were given the samples that this one was given, in each step."""
    steps = {step: samples for step, samples in record.samples.items() if step > 0}
    if len(steps) < SAME_STEPS or len(set(steps.values())) < 2 or not all(steps.values()):
        return ()  # chance, or one batch again and again, which may be all the data that there is
    return tuple(
        peer for peer in peers if all(records[peer].samples.get(step) == samples for step, samples in steps.items())
    )


# --- weights that ranks begin with ---


def _mark_beginnings(records: list[_Record], events: list[list[Event]]) -> None:
    """Mark the first calls of models whose weights the ranks began with alike, or not."""
    calls = [
        [e for e in own if isinstance(e, ForwardEntered) and e.order in record.beginnings]
        for record, own in zip(records, events, strict=True)
    ]
    if len(calls) < 2:
        return
    for entered in zip(*calls, strict=False):
        digests = [record.beginnings[e.order] for record, e in zip(records, entered, strict=True)]
        common = set[str].intersection(*map(set, digests))
        if not common or len({e.at for e in entered}) > 1:
            continue
        alike = all(len({d[name] for d in digests}) == 1 for name in common)
        for own, event in zip(events, entered, strict=True):
            _put(own, dataclasses.replace(event, alike=alike))


def _mark_seeds(records: list[_Record], events: list[list[Event]]) -> None:
    """Mark the seeds of generators and samplers as the same or not, as long as ranks seed at the same places."""
    seeded = [[e for e in own if isinstance(e, (Seeded, SamplerBuilt))] for own in events]
    if len(seeded) < 2:
        return
    for one in zip(*seeded, strict=False):
        seeds = {record.seeds.get(e.order) for record, e in zip(records, one, strict=True)}
        if None in seeds or len({e.at for e in one}) > 1:
            return
        for own, event in zip(events, one, strict=True):
            _put(own, dataclasses.replace(event, per_rank=len(seeds) > 1))


# --- collectives that not all ranks reach ---


def _mark_alone(run: Run, records: list[_Record], events: list[list[Event]], before: Mapping[int, int] | None) -> bool:
    """Mark the first collective at which the ranks part, on the ranks that are alone with it, if there is one.

    Only where the others cannot come any more: they have ended normally, stand in another collective, or the run has
    hung. A rank that crashed for a reason of its own leaves the others waiting too, and that is not their fault.
    Nor where they have parted before, within the calls of these orders (`before`, by rank). Of a call in a loop that
    the others have left, the loop is told (`RoundsDiffer`).
    """
    calls = [[e for e in own if _joint(e, r)] for own, r in zip(events, records, strict=True)]
    ranks = range(len(calls))
    counts = [Counter(_kind(e) for e in own) for own in calls]
    if all(c == counts[0] for c in counts) and all(map(_well, run.ends, records)):
        return False
    at = next((i for i in range(max(map(len, calls), default=0)) if len({_nth(c, i) for c in calls}) > 1), None)
    if at is None:
        return False
    present = {r: calls[r][at] for r in ranks if at < len(calls[r])}
    absent = [r for r in ranks if r not in present]
    if any(not _well(run.ends[r], records[r]) and run.ends[r].code is not None for r in absent):
        return False
    if before is not None and any(before[r] < event.order for r, event in present.items()):
        return False
    again = more_rounds(present, calls, at, [Way(record.stacks, _length(record)) for record in records])
    if again and not (run.hung and not _stuck(run, [(records[r], present[r]) for r in again])):
        for rank in again:
            mark_round(events[rank], present[rank])
        return True
    alone = _alone(present, calls) if not absent or len({_kind(e) for e in present.values()}) > 1 else list(present)
    if run.hung and not _stuck(run, [(records[r], present[r]) for r in alone]):
        return False
    only = f"{'rank' if len(alone) == 1 else 'ranks'} {', '.join(map(str, alone))} of {len(calls)}"
    for rank in alone:
        marked = present[rank]
        _put(events[rank], dataclasses.replace(marked, when=dataclasses.replace(marked.when, only=only)))
    return True


def _length(record: _Record) -> int | None:
    """How many batches the last pass through a loader has."""
    return record.lengths[max(record.lengths)] if record.lengths else None


def _joint(event: Event, record: _Record) -> bool:
    """Whether all ranks have to make this call together."""
    group = None if isinstance(event, GroupCreated) else getattr(event, "group", None)
    return event.collective and event.when.main_thread and (group is None or group.id not in record.partial)


def _kind(event: Event) -> tuple[str, str | None]:
    return type(event).__name__, getattr(event, "op", None)


def _nth(calls: list[Event], number: int) -> tuple[str, str | None] | None:
    return _kind(calls[number]) if number < len(calls) else None


def _well(end: RankEnd, record: _Record) -> bool:
    """Whether the program of a rank ended as one that has succeeded."""
    return end.code == 0 or (end.code is not None and end.error is None and _exit_code(record) == 0)


def _alone(present: Mapping[int, Event], calls: list[list[Event]]) -> list[int]:
    """The ranks that took another way than most.

    Of equal parts, the one whose call the others make nowhere, as they have skipped it; else the one that stands
    earlier in the source, as those that skip a call are further down than those that make it.
    """
    parts: dict[tuple[str, str | None], list[int]] = {}
    for rank, event in present.items():
        parts.setdefault(_kind(event), []).append(rank)
    fewest = min(len(ranks) for ranks in parts.values())
    smallest = [ranks for ranks in parts.values() if len(ranks) == fewest]

    def elsewhere(ranks: list[int]) -> bool:
        one = present[ranks[0]]
        return any(e.at == one.at for r, own in enumerate(calls) if r not in ranks for e in own)

    return min(smallest, key=lambda ranks: (elsewhere(ranks), present[ranks[0]].at.line, ranks[0]))


def _stuck(run: Run, waiting: list[tuple[_Record, Event]]) -> bool:
    """Whether these calls had been waiting for so long at the deadline that nobody was still on the way to them."""
    deadline = float(Places(run.records.parent).hung.read_text())
    limit = max(STUCK_SECONDS, STUCK * run.job.deadline)
    return all(deadline - record.entered.get(event.order, deadline) >= limit for record, event in waiting)
