"""Where the rules about what a checkpoint leaves out are silent since something is not known: `lint --verbose`."""

from __future__ import annotations

from collections.abc import Iterator

from ..events import (
    AsyncSaved,
    Backward,
    BatchesPassedOver,
    ForwardEntered,
    Kind,
    Loaded,
    LoaderBuilt,
    OptimizerBuilt,
    Ref,
    Saved,
)
from ..trace import Note, Trace
from .base import listed
from .omissions import entries_of, of_training

_OMISSIONS = "(FS605, FS606, FS607, FS608)"


def unjudged(traces: tuple[Trace, ...]) -> list[Note]:
    """The reasons, each once, of the program itself: a function that is read alone shows none of its callers' loops."""
    return list(dict.fromkeys(_of_one(traces[0])))


def _of_one(trace: Trace) -> Iterator[Note]:
    if not any(trace.of(Backward)):
        return  # it converts checkpoints, or tries a model out
    yield from _unknown_contents(trace)
    saves, loads = of_training(trace, Saved, AsyncSaved), of_training(trace, Loaded)
    if saves and loads:
        yield from _dropout(trace)
        yield from _positions(trace)
        yield from _models(trace)


def _unknown_contents(trace: Trace) -> Iterator[Note]:
    """What a checkpoint leaves out may be in what is not known of it, or of another."""
    for event in trace.of(Saved, AsyncSaved, Loaded):
        unknown = dict.fromkeys(e.key for e in entries_of(event) if e.kind is Kind.UNKNOWN)
        if event.entries is None or unknown:
            what = f"what {listed(unknown)} holds" if unknown else "what is in this checkpoint"
            yield Note(event.at, f"{what}: so what the checkpoints leave out is not judged {_OMISSIONS}")


def _dropout(trace: Trace) -> Iterator[Note]:
    """The state of torch's own generators belongs to a rank; that of one which the program made need not."""
    if any(e.kind is Kind.RNG and e.per_rank is not None for s in trace.of(Saved, AsyncSaved) for e in entries_of(s)):
        return
    for entered in trace.of(ForwardEntered):
        if entered.drops is None and any(trace.after(entered, Backward)):
            text = f"whether `{entered.module.name}` drops out values: so whether the state of torch's random numbers, "
            yield Note(entered.at, text + "which no checkpoint is seen to hold, is left out is not judged (FS607)")
            return


def _positions(trace: Trace) -> Iterator[Note]:
    """Batches may be passed over by a count that was loaded, or by one that begins again."""
    passed = {event.loader for event in trace.of(BatchesPassedOver)}
    for built in trace.of(LoaderBuilt):
        underway = any(built.loader in saved.underway for saved in trace.of(Saved, AsyncSaved))
        if built.rewinds and built.loader in passed and underway:
            text = f"by which count the batches of `{built.loader.name}` are passed over after a resume"
            yield Note(built.at, f"{text}: so whether it is saved and read back is not judged (FS606)")


def _models(trace: Trace) -> Iterator[Note]:
    """A model beside the one that is trained: an average is lost, a teacher is made again as it was."""
    kept = [e.of for event in trace.of(Saved, AsyncSaved, Loaded) for e in entries_of(event) if e.of is not None]
    trained = [module for built in trace.of(OptimizerBuilt) for module in built.modules]
    told = set[Ref]()
    for entered in trace.of(ForwardEntered):
        module = entered.module
        if not entered.sharded or module in told or any(trace.related(module, other) for other in (*kept, *trained)):
            continue
        told.add(module)
        text = f"whether the weights of `{module.name}`, which no checkpoint holds, ever change"
        yield Note(entered.at, f"{text}: so whether a resumed run goes on with the same ones is not judged")
