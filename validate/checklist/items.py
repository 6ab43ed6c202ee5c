"""The items of SKILL.md's two workflows, word for word (a test compares), with what breaks and what fulfils each.

A rule of the book that names an item breaks it. Where no rule found anything, the item's own function looks for what
the item asks for. It says `missing` only of a program that was read to its end, and `not seen` where it cannot tell.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from ..events import (
    AsyncSaved,
    Form,
    ForwardEntered,
    GradientsClipped,
    GroupInitialised,
    Kind,
    Loaded,
    Location,
    Materialised,
    MeshCreated,
    ModuleBuilt,
    OptimizerBuilt,
    Saved,
    Sharded,
    SignalHandled,
    TorchSaved,
    Via,
)
from ..rules import RULES
from .seen import Seen
from .verdicts import Status, Verdict, Workflow

_KNOWN = frozenset(rule.code for rule in RULES)


@dataclass(frozen=True)
class Item:
    """One line of a list.

    `text` is SKILL.md's. `rules` are the codes that break it; of `at_saves` only findings at a save count; with
    `any_rule` whatever fails the linter breaks it.
    """

    text: str
    judge: Callable[[Seen], Verdict]
    rules: tuple[str, ...] = ()
    at_saves: tuple[str, ...] = ()
    any_rule: bool = False

    def verdict(self, seen: Seen) -> Verdict:
        """The verdict where no rule found anything."""
        saves = frozenset(e.at for e in seen.of(Saved, AsyncSaved)) if self.at_saves else frozenset()
        return replace(self.judge(seen), places=saves)


def _done(at: Location | None, note: str = "") -> Verdict:
    return Verdict(Status.DONE, at, note)


def _missing(seen: Seen, note: str, at: Location | None = None) -> Verdict:
    """It is not there; where that is not certain, it was not seen."""
    return Verdict(Status.MISSING if seen.is_whole else Status.NOT_SEEN, at, note)


def _not_seen(note: str, at: Location | None = None) -> Verdict:
    return Verdict(Status.NOT_SEEN, at, note)


# --- Workflow A ---


def _launched(seen: Seen) -> Verdict:
    at = seen.first(GroupInitialised, MeshCreated)
    return _done(at) if at else _missing(seen, "no process group and no mesh is made")


def _architecture(seen: Seen) -> Verdict:
    at = seen.first(Sharded)
    if at is None:
        return _missing(seen, "nothing is sharded yet; shard after the last change to the model built here", seen.model)
    if seen.trained_whole is not None:
        return _trained_whole(seen)
    return _done(at, "sharded from here on") if "FS204" in _KNOWN else _not_seen("look at what follows", at)


def _trained_whole(seen: Seen) -> Verdict:
    """Something is sharded, and it is not what is trained."""
    entered = seen.trained_whole
    assert entered is not None
    return _missing(seen, f"another model is sharded, but not `{entered.module.name}`, which is trained", entered.at)


def _sharded(seen: Seen) -> Verdict:
    at = seen.last(Sharded)
    if seen.trained_whole is not None:
        return _trained_whole(seen)
    return _done(at) if at else _missing(seen, "nothing is sharded; the model is built here", seen.model)


def _meta(seen: Seen) -> Verdict:
    if not any(e.meta for e in seen.of(ModuleBuilt)):
        return _not_seen("nothing is known to be built on the meta device")
    at = seen.first(Materialised)
    return _done(at) if at else _not_seen("no to_empty is seen")


def _optimizer(seen: Seen) -> Verdict:
    at = seen.first(OptimizerBuilt)
    if at is None:
        return _not_seen("no optimizer is seen")
    if seen.first(Sharded) is None:
        return _missing(seen, "built here; it must come after sharding", at)
    return _trained_whole(seen) if seen.trained_whole is not None else _done(at)


def _called(seen: Seen) -> Verdict:
    at = seen.first(ForwardEntered)
    return _done(at) if at else _not_seen("no call of the model is seen; `.forward(` would be one to change")


def _data(seen: Seen) -> Verdict:
    if not seen.is_distributed:
        return _missing(seen, "each rank would read the same batches")
    return _not_seen("look at what each rank reads")


def _clipped(seen: Seen) -> Verdict:
    at = seen.first(GradientsClipped)
    return _done(at) if at else _not_seen("no clipping is seen")


def _together(seen: Seen) -> Verdict:
    if not seen.is_distributed:
        return _missing(seen, "one process is all ranks; check every `if rank == 0` that you add")
    return _done(None, "no collective is under a condition on the rank")


def _clean(_seen: Seen) -> Verdict:
    return _not_seen("lint is clean; now run validate")


_A = (
    Item(
        "Start it with torchrun; `init_process_group`, and "
        '`torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))` where there are GPUs',
        _launched,
        ("FS101",),
    ),
    Item(
        "Change the architecture first (heads, adapters, ties), then shard",
        _architecture,
        ("FS204", "FS205", "FS211", "FS214", "FS217", "FS305", "FS306"),
    ),
    Item(
        "`for block in model.blocks: fully_shard(block, **policy)`, then `fully_shard(model, **policy)`",
        _sharded,
        ("FS201", "FS202", "FS203", "FS207", "FS208", "FS209", "FS210", "FS212", "FS213", "FS215", "FS216"),
    ),
    Item(
        "With meta init: `to_empty` after sharding, then initialise parameters and buffers, non-persistent ones too",
        _meta,
        ("FS218", "FS301", "FS302", "FS303", "FS304", "FS307"),
    ),
    Item("Build the optimizer now, then the scheduler", _optimizer, ("FS206", "FS401", "FS402")),
    Item("Call `model(inputs)`; no `.forward(`", _called, ("FS403", "FS404")),
    Item(
        "Give each data-parallel rank its own part of each batch",
        _data,
        ("FS501", "FS502", "FS503", "FS504", "FS507", "FS508"),
    ),
    Item(
        "`clip_grad_norm_` over all parameters on all ranks; `.full_tensor()` before logging the norm",
        _clipped,
        ("FS406", "FS407", "FS408"),
    ),
    Item(
        "No collective (`dcp.save`, a barrier, a forward, `full_tensor`) under `if rank == 0`",
        _together,
        ("FS102", "FS103"),
    ),
    Item("`python <skill-dir> lint train.py` and `validate --prove trace` are clean", _clean, any_rule=True),
)


# --- Workflow B ---


def _no_save(seen: Seen) -> Verdict:
    at = seen.first(TorchSaved)
    return _missing(seen, "saved by torch.save here" if at else "nothing is saved", at)


def _stateful(seen: Seen) -> Verdict:
    at = seen.first(Saved, AsyncSaved)
    if at is None:
        return _no_save(seen)
    model, optimizer = seen.saved(Kind.MODEL), seen.saved(Kind.OPTIMIZER)
    if model is not None and optimizer is not None:
        if model.via is Via.HELPER and optimizer.via is Via.HELPER:
            return _done(at)
        return _missing(seen, "taken by state_dict(), not by get_state_dict: optimizer state then has no names", at)
    if any(e.kind is Kind.UNKNOWN for _, e in seen.entries()) or not any(seen.entries()):
        return _not_seen("what is saved here cannot be seen into", at)
    return _missing(
        seen, f"no state of the {'optimizer' if model is not None else 'model'} is in what is saved here", at
    )


def _not_lazily(seen: Seen) -> Verdict:
    loaded = next(seen.of(Loaded), None)
    if loaded is None:
        return _not_seen("no dcp.load is seen")
    return _done(loaded.at) if loaded.entries else _not_seen("what is loaded here cannot be seen into", loaded.at)


def _sharded_state(seen: Seen) -> Verdict:
    at = seen.saved_in(Form.SHARDED)
    if at is not None:
        return _done(at)
    at = seen.first(Saved, AsyncSaved)
    return _not_seen("whether the state saved here is sharded does not show", at) if at else _no_save(seen)


def _position(seen: Seen) -> Verdict:
    at = next((at for at, entry in seen.entries() if entry.kind is Kind.LOADER), None)
    return _done(at, "the loader's position; look at its generator") if at else _not_seen("no loader is in a save")


def _per_rank(seen: Seen) -> Verdict:
    own = (at for at, e in seen.entries() if e.kind in (Kind.RNG, Kind.LOADER) and e.per_rank is False)
    at = next(own, None)
    return _done(at) if at else _not_seen("no state of single ranks is seen in a save")


def _saved(seen: Seen) -> Verdict:
    at = seen.first(Saved, AsyncSaved)
    return _done(at) if at else _no_save(seen)


def _resumed(seen: Seen) -> Verdict:
    at = seen.first(Loaded)
    if at is None:
        return _missing(seen, "no dcp.load is seen")
    return _done(at) if "FS706" in _KNOWN else _not_seen("look at how the directory loaded here is chosen", at)


def _asynchronous(seen: Seen) -> Verdict:
    at = seen.first(AsyncSaved)
    return _done(at) if at else _not_seen("no async_save is seen")


def _terminated(seen: Seen) -> Verdict:
    at = seen.first(SignalHandled)
    return _done(at) if at else _missing(seen, "no signal is handled")


def _proved(_seen: Seen) -> Verdict:
    return _not_seen("run it: no reading proves that")


_B = (
    Item(
        "Wrap what makes the next step in a `Stateful`: its `state_dict` takes model and optimizer by "
        "`get_state_dict(model, optimizer)` and adds scheduler, step, data position; its `load_state_dict` "
        "applies them by `set_state_dict` and `load_state_dict`",
        _stateful,
        ("FS601", "FS603", "FS605", "FS607", "FS608", "FS612", "FS613", "FS614", "FS702", "FS703", "FS704", "FS709"),
    ),
    Item(
        "Never hand a fresh optimizer itself to `dcp.load`: its state is empty, so nothing is requested and "
        "nothing restored (FS701)",
        _not_lazily,
        ("FS701", "FS712"),
    ),
    Item("Sharded state for resuming; `full_state_dict=True` is for export only (FS602)", _sharded_state, ("FS602",)),
    Item(
        "With a `DataLoader`: save the position, and give it `generator=torch.Generator()`; without one of "
        "its own, each new iterator draws from the global generator, and a run resumed within an epoch gets "
        "other dropout masks",
        _position,
        ("FS606",),
    ),
    Item(
        "State that differs by rank (RNG, data loader) under a key that names the rank: DCP keeps one value a "
        "key (FS604)",
        _per_rank,
        ("FS604", "FS615", "FS710"),
    ),
    Item(
        '`dcp.save({"train": state}, checkpoint_id=f"{folder}/step-{step}")` on **all** ranks, a new '
        "directory each time",
        _saved,
        ("FS609", "FS611", "FS713"),
        at_saves=("FS102",),
    ),
    Item(
        "On start: rank 0 finds the newest *whole* directory (its `.metadata` reads, every file it names is "
        "there), tells the others, all `dcp.load`",
        _resumed,
        ("FS103", "FS610", "FS705", "FS706", "FS707", "FS708"),
    ),
    Item(
        '`async_save`: `process_group=dist.new_group(backend="gloo")`; `.result()` of the last save before '
        "the next and before exit (FS801, FS802)",
        _asynchronous,
        ("FS104", "FS801", "FS802", "FS803", "FS804", "FS805", "FS806"),
    ),
    Item(
        "SIGTERM: a handler sets a flag; each step an `all_reduce` of it lets all ranks agree; save, exit 0",
        _terminated,
    ),
    Item(
        "`python <skill-dir> validate train.py --nproc 2 --prove trace,resume --checkpoint-arg FLAG "
        "--stop-after 20 -- ...` passes (FLAG: the script's own flag for its checkpoint directory; without "
        "one leave it out, and each run gets a copy of the working directory, so start in a small one)",
        _proved,
    ),
)

WORKFLOWS = {
    "a": Workflow("a", "retrofit FSDP2 into a training script", _A),
    "b": Workflow("b", "add DCP", _B),
}
