"""FS5: which samples each rank sees, and in which order."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ..events import (
    Backward,
    BatchesDrawn,
    CollectiveCalled,
    DividedByRank,
    EpochSet,
    ForwardEntered,
    GroupCreated,
    GroupInitialised,
    LoaderBuilt,
    MeshCreated,
    RoundsDiffer,
    SamplerBuilt,
    Seeded,
    Sharded,
)
from ..findings import Finding, Severity
from ..trace import Trace
from .base import PROBE, READER, Rule

# Dims of a mesh along which ranks see different samples, and those along which they work on the same ones.
_DATA = re.compile(r"dp|data|shard|repl|fsdp|world", re.IGNORECASE)
_PARTS = re.compile(r"(^|_)(cp|sp)(_|$)|context|seq|ring|ulysses", re.IGNORECASE)
_PASSES_ON = re.compile(r"all_gather|broadcast|all_to_all|scatter|send")
_SAME = re.compile(r"^(tp|cp|sp|pp)$|tensor|context|seq|pipe|stage|model", re.IGNORECASE)


class SameDataOnEveryRank(Rule):
    """Data-parallel ranks that see the same samples compute the same gradient: as many as there are, one's worth."""

    code = "FS501"
    name = "same-data-on-every-rank"
    severity = Severity.ERROR
    clause = 6

    def check(self, trace: Trace) -> Iterator[Finding]:
        by_loader = list(self._of_loaders(trace))
        yield from by_loader or self._of_calls(trace)

    def _of_calls(self, trace: Trace) -> Iterator[Finding]:
        """Where the model was given the same samples on ranks that average their gradients, however they came there."""
        if any(_splits_sequences(mesh) for mesh in trace.of(MeshCreated)) or not all(
            group.everyone for group in trace.of(GroupCreated)
        ):
            return
        for entered in trace.of(ForwardEntered):
            if entered.same_samples:
                ranks = ", ".join(map(str, entered.same_samples))
                message = (
                    f"rank {entered.when.rank} trains `{entered.module.name}` on the samples that "
                    f"{'rank' if len(entered.same_samples) == 1 else 'ranks'} {ranks} trained it on, in each step, and "
                    "their gradients are averaged: more ranks cost more and give nothing. Divide each batch by the "
                    "data-parallel rank (DistributedSampler, or a slice of the global batch)."
                )
                sharded = next((s for s in trace.of(Sharded) if s.module == entered.module), None)
                yield self.finding(entered, message, (sharded, "sharded here"))

    def _of_loaders(self, trace: Trace) -> Iterator[Finding]:
        if not any(trace.of(Sharded)) or any(_splits_work(mesh) for mesh in trace.of(MeshCreated)):
            return
        if any(entered.other_samples for entered in trace.of(ForwardEntered)):
            return  # they are divided after the loader
        for built in trace.of(LoaderBuilt):
            drawn = next(
                (d for d in trace.after(built, BatchesDrawn) if d.loader == built.loader and trains(trace, d)), None
            )
            if drawn is None or not self._alike(trace, built, drawn):
                continue
            name = built.loader.name
            message = (
                f"nothing divides the samples of `{name}` among the ranks: each rank trains on all of them, so that "
                "more ranks cost more and give nothing. Give it sampler=DistributedSampler(dataset), and call its "
                "set_epoch before each epoch."
            )
            yield self.finding(built, message, (drawn, "trained on here"))

    def _alike(self, trace: Trace, built: LoaderBuilt, drawn: BatchesDrawn) -> bool:
        if trace.origin == PROBE:
            return drawn.alike is True
        if built.whole is not True or trace.escaped(built.loader) or any(trace.of(DividedByRank)):
            return False
        seeds = list(trace.of(Seeded))
        if built.random:  # without a seed each rank makes samples of its own
            return bool(seeds) and not any(s.per_rank for s in seeds)
        return built.shuffles is False or (built.shuffles is True and not any(s.per_rank for s in seeds))


class SamplerUsesGlobalRank(Rule):
    """Ranks that share the work on a sample must see the same one, so the sampler goes by the data-parallel rank."""

    code = "FS502"
    name = "sampler-uses-global-rank"
    severity = Severity.ERROR
    clause = 6

    def check(self, trace: Trace) -> Iterator[Finding]:
        samplers = list(trace.of(SamplerBuilt))
        if not all(s.everyone for s in samplers):
            return  # which of them is used depends on the mesh, perhaps
        if any(_PASSES_ON.match(called.op) and called.group is not None for called in trace.of(CollectiveCalled)):
            return  # ranks that work on one sample may give it to each other
        for built in samplers:
            mesh = next(
                (m for m in (*trace.before(built, MeshCreated), *trace.after(built, MeshCreated)) if _shares(m)), None
            )
            if mesh is None:
                continue
            dims = ", ".join(f"`{d}`" for d in _shared(mesh))
            message = (
                f"the sampler divides the samples among all ranks, but the ranks along {dims} of the mesh work on one "
                "sample together and now get different ones. Give it the data-parallel dim: "
                'num_replicas=mesh["dp"].size(), rank=mesh["dp"].get_local_rank().'
            )
            yield self.finding(built, message, (mesh, "the mesh"))


class SamplerSeedsDiffer(Rule):
    """A `DistributedSampler` gives a rank its part of one order, which all ranks draw for themselves, by one seed."""

    code = "FS507"
    name = "sampler-seeds-differ"
    severity = Severity.ERROR
    clause = 6

    def check(self, trace: Trace) -> Iterator[Finding]:
        for built in trace.of(SamplerBuilt):
            if built.per_rank is not True or built.shuffles is not True or built.everyone is not True:
                continue  # without one order of all replicas, or among others that may each have an order of their own
            message = (
                f"the seed of `{built.sampler.name}` differs from rank to rank, so each rank takes its part of another "
                "order: in an epoch some samples are read by several ranks and others by none. Give all ranks one seed."
            )
            yield self.finding(built, message)


class DataDividedByLocalRank(Rule):
    """LOCAL_RANK counts the ranks of one machine: the first ranks of all machines have the same one."""

    code = "FS508"
    name = "data-divided-by-local-rank"
    severity = Severity.WARN
    clause = 6
    seen_by = frozenset({READER})

    def check(self, trace: Trace) -> Iterator[Finding]:
        if any(started.by_local_rank for started in trace.of(GroupInitialised)):
            return  # it is made for one machine: there the two numbers are one
        shards = any(trace.of(Sharded))
        samplers = [built for built in trace.of(SamplerBuilt) if built.by_local_rank]
        divided = [one for one in trace.of(DividedByRank) if one.by_local_rank and shards]
        for one in (*samplers, *divided):
            message = (
                "what each rank gets here goes by its number within its machine (LOCAL_RANK): on several machines, "
                "as many ranks as there are machines train on the same samples. Divide by the rank in the job "
                "(dist.get_rank()), or in the data-parallel dim of the mesh."
            )
            yield self.finding(one, message)


class EpochNeverSet(Rule):
    """A `DistributedSampler` shuffles by its seed and the epoch that it was told: the same order until it is told."""

    code = "FS503"
    name = "epoch-never-set"
    severity = Severity.WARN
    clause = 6
    seen_by = frozenset({READER})

    def check(self, trace: Trace) -> Iterator[Finding]:
        told = list(trace.of(EpochSet))
        for sampler in trace.of(SamplerBuilt):
            if sampler.shuffles is not True or trace.escaped(sampler.sampler) or sampler.when.loop:
                continue  # one that is made anew for each epoch may have a seed for each
            for built in trace.after(sampler, LoaderBuilt):
                if built.sampler != sampler.sampler or trace.escaped(built.loader):
                    continue
                if any(t.of in (None, sampler.sampler, built.loader) for t in told):
                    continue
                drawn = (d for d in trace.after(built, BatchesDrawn) if d.loader == built.loader and d.when.loop)
                again = next((d for d in drawn if trains(trace, d)), None)
                if again is None:
                    continue
                message = (
                    "this sampler is never told the epoch, so each one goes through the samples in the same order. "
                    f"Call {sampler.sampler.name}.set_epoch(epoch) before each epoch."
                )
                yield self.finding(sampler, message, (again, "each epoch begins here"))
                break


class UnequalBatchesPerRank(Rule):
    """Each round of a loop over batches is a collective: a rank with a batch more waits for those that have none."""

    code = "FS504"
    name = "unequal-batches-per-rank"
    severity = Severity.ERROR
    clause = 6

    def check(self, trace: Trace) -> Iterator[Finding]:
        for rounds in trace.of(RoundsDiffer):
            inside = (e for e in trace.of(ForwardEntered) if rounds.since <= e.order <= rounds.order)
            entered = next((e for e in inside if e.sharded), None)
            if entered is None:
                continue
            name = entered.module.name
            what = (
                "this loop goes through a part of the data, one a rank, and not all need be of one length"
                if trace.origin == READER
                else f"rank {rounds.when.rank} begins another round here, and other ranks have left the loop"
            )
            message = (
                f"{what}: who has a batch more waits in the forward of the sharded `{name}` for ever. Give all ranks "
                "as many: by DistributedSampler, or of data whose length is a multiple of the number of ranks."
            )
            yield self.finding(rounds, message, (entered if trace.origin == READER else None, "the forward"))


class SameDropoutOnEveryRank(Rule):
    """Ranks whose generators begin alike leave out the same places of their different samples."""

    code = "FS505"
    name = "same-dropout-on-every-rank"
    severity = Severity.INFO
    clause = 6

    def check(self, trace: Trace) -> Iterator[Finding]:
        seeds = list(trace.of(Seeded))
        if any(s.per_rank is not False for s in seeds) or any(_splits_work(m) for m in trace.of(MeshCreated)):
            return
        for entered in trace.of(ForwardEntered):
            before = [s for s in trace.before(entered, Seeded) if s.of_torch]
            if not before or not (entered.drops and entered.sharded and any(trace.after(entered, Backward))):
                continue
            message = (
                f"every rank is seeded with the same number, and `{entered.module.name}` drops out values at random: "
                "all ranks leave out the same places, so that the masks of a step are fewer than its samples. Once "
                "the model is initialised, seed each rank with its own number (torch.manual_seed(seed + rank))."
            )
            yield self.finding(before[-1], message, (entered, "drops out values"))
            return


def trains(trace: Trace, drawn: BatchesDrawn) -> bool:
    """Whether a sharded model is trained on the first batch: called once, then backward; an evaluation goes on."""
    end = next(trace.after(drawn, Backward), None)
    if end is None or any(trace.between(drawn, end, BatchesDrawn)):
        return False
    entered = list(trace.between(drawn, end, ForwardEntered))
    return any(e.sharded for e in entered) and len({e.module.id for e in entered}) == len(entered)


def _sized(mesh: MeshCreated) -> list[tuple[str, int | None]]:
    shape = mesh.shape or ()
    return [(name, shape[i] if i < len(shape) else None) for i, name in enumerate(mesh.dims or ())]


def _splits_work(mesh: MeshCreated) -> bool:
    """Whether ranks along some dim of the mesh may have to see the same samples."""
    if mesh.dims is None:
        return mesh.shape is None or len(mesh.shape) > 1
    return any(size != 1 and not _DATA.search(name) for name, size in _sized(mesh))


def _splits_sequences(mesh: MeshCreated) -> bool:
    """Whether ranks along a dim of the mesh may have to be given the same samples, to work on a part of each."""
    return any(size != 1 and _PARTS.search(name) for name, size in _sized(mesh))


def _shared(mesh: MeshCreated) -> list[str]:
    return [name for name, size in _sized(mesh) if size != 1 and _SAME.search(name) and not _DATA.search(name)]


def _shares(mesh: MeshCreated) -> bool:
    return bool(_shared(mesh))
