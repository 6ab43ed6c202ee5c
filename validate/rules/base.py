"""What a rule is."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import ClassVar

from ..events import (
    Entry,
    Escaped,
    Event,
    Exited,
    Location,
    ModuleBuilt,
    OptimizerBuilt,
    Origin,
    Ref,
    Sharded,
    StateApplied,
    StateTaken,
    Stepped,
    Via,
)
from ..findings import Finding, Severity
from ..trace import Trace

READER: Origin = "reader"
PROBE: Origin = "probe"
# Keys of numbers that tell nothing of how far a run is, whatever else they are called.
OF_OTHER_THINGS = re.compile(r"(^|[._])(best|ema|average|averaged|config|cfg|settings|options)([._]|$)", re.IGNORECASE)


class Rule(ABC):
    """A statement about the order and identity of events, guarding one clause of the contract.

    A subclass says what it forbids in `code`, `name` (reads as "allow <name>") and `severity`; `clause` numbers the
    clause of the contract;
    `seen_by` the observers whose traces can show it. Its page and its runnable pair are in
    `references/rules/<code>-<name>/`.
    """

    code: ClassVar[str]
    name: ClassVar[str]
    severity: ClassVar[Severity]
    clause: ClassVar[int]
    seen_by: ClassVar[frozenset[Origin]] = frozenset({READER, PROBE})

    @abstractmethod
    def check(self, trace: Trace) -> Iterator[Finding]:
        """Yield a finding for each place in `trace` that breaks the rule; nothing where the trace does not tell."""

    def finding(self, event: Event, message: str, *related: tuple[Event | Location | None, str]) -> Finding:
        """A finding at `event`.

        Each of `related` is another event, or place, and its part in it ("sharded here"); None where there is none.
        """
        places = tuple((e if isinstance(e, Location) else e.at, word) for e, word in related if e is not None)
        ranks = () if event.when.rank is None else (event.when.rank,)
        return Finding(self.code, self.name, self.severity, self.clause, message, event.at, places, ranks)


_FOLDERS_OF_TESTS = {"test", "tests", "testing", "unit_tests"}


def in_tests(event: Event) -> bool:
    """Whether it happens in a file of tests, whose models are small and whose number of ranks is their runner's.

    What tests are tried on, their fixtures, is no such file.
    """
    *folders, name = re.split(r"[\\/]", event.at.file)
    if name.startswith("test_") or name.endswith(("_test.py", "_tests.py")):
        return True
    return not _FOLDERS_OF_TESTS.isdisjoint(folders) and "fixtures" not in folders


def concluded(trace: Trace) -> bool:
    """Whether what is absent from the trace was left out by the program: it was seen to end, and not by a failure."""
    return trace.ended and not any(exited.error or exited.code for exited in trace.of(Exited))


def eager(built: OptimizerBuilt) -> bool:
    """Whether an optimizer creates its state in its constructor; the others of torch.optim do at the first step."""
    return built.cls.rpartition(".")[2] == "Adagrad"


def stepped(trace: Trace, optimizer: Ref, event: Event) -> bool:
    """Whether the optimizer has taken a step before an event, or was given the state of one that had."""
    return any(s.optimizer == optimizer for s in trace.before(event, Stepped)) or any(
        optimizer in a.to for a in trace.before(event, StateApplied)
    )


def has_state(trace: Trace, optimizer: Ref, event: Event) -> bool:
    """Whether there is state of the optimizer before an event: the helpers that read it create it, too."""
    return stepped(trace, optimizer, event) or any(
        optimizer in t.of and t.via is Via.HELPER for t in trace.before(event, StateTaken)
    )


def unsharded(trace: Trace, event: StateTaken | StateApplied) -> bool:
    """Whether the state is of modules that are not sharded yet, so that each rank has all of it."""
    of = event.of if isinstance(event, StateTaken) else event.to
    if isinstance(event, StateTaken) and event.unsharded:
        return True
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


def named(refs: Iterable[Ref]) -> str:
    """The names of objects, for a message."""
    return ", ".join(dict.fromkeys(f"`{ref.name}`" for ref in refs))


def quoted(entries: Iterable[Entry]) -> str:
    """The keys of entries, for a message; a state dict that is no entry of another has none."""
    return ", ".join(f"`{entry.key}`" if entry.key else "the state dict" for entry in entries)


def listed(names: Iterable[str]) -> str:
    """The first names, for a message."""
    every = list(names)
    return ", ".join(f"`{name}`" for name in every[:3]) + (f" and {len(every) - 3} more" if len(every) > 3 else "")
