"""What the reader saw of a program, as the items of a checklist ask for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from ..events import (
    AsyncSaved,
    Backward,
    Entry,
    Event,
    Form,
    ForwardEntered,
    GroupInitialised,
    Kind,
    Loaded,
    Location,
    MeshCreated,
    ModuleBuilt,
    OptimizerBuilt,
    Saved,
    Sharded,
    Stepped,
    TorchSaved,
)
from ..trace import Trace

E = TypeVar("E", bound=Event)

# What a program that trains, saves or loads does in the sight of the reader.
_OF_PROGRAMS = (
    Backward,
    ForwardEntered,
    Loaded,
    ModuleBuilt,
    OptimizerBuilt,
    Saved,
    AsyncSaved,
    Sharded,
    Stepped,
    TorchSaved,
)


@dataclass(frozen=True)
class Seen:
    """The traces of one file: the program's, then those of the functions that it does not reach."""

    traces: Sequence[Trace]

    @property
    def is_program(self) -> bool:
        """Whether the file itself trains, saves or loads when it is run."""
        return any(self.traces[0].of(*_OF_PROGRAMS))

    @property
    def is_whole(self) -> bool:
        """Whether the program was read to its end, so that what was not seen is not there."""
        return self.is_program and self.traces[0].ended

    def of(self, *types: type[E]) -> Iterator[E]:
        """The events of these classes, the program's first."""
        for trace in self.traces:
            yield from trace.of(*types)

    def first(self, *types: type[E]) -> Location | None:
        """Where the first such event is."""
        return next((e.at for e in self.of(*types)), None)

    def last(self, *types: type[E]) -> Location | None:
        """Where the last one is, of the first trace that has any."""
        for trace in self.traces:
            if found := list(trace.of(*types)):
                return found[-1].at
        return None

    @property
    def is_distributed(self) -> bool:
        """Whether several ranks work together."""
        return self.first(GroupInitialised, MeshCreated, Sharded) is not None

    @property
    def model(self) -> Location | None:
        """Where the model is built: the outermost module that an optimizer is over, else the last that is built."""
        built = {e.module: e.at for e in self.of(ModuleBuilt)}
        for optimizer in self.of(OptimizerBuilt):
            for module in optimizer.modules:
                if module in built:
                    return built[module]
        return list(built.values())[-1] if built else None

    @property
    def trained_whole(self) -> ForwardEntered | None:
        """A call of a model that an optimizer steps, where nothing of it is sharded while another model is."""
        for trace in self.traces:
            stepped = [module for built in trace.of(OptimizerBuilt) for module in built.modules]
            sharded = [event.module for event in trace.of(Sharded)]
            for entered in trace.of(ForwardEntered):
                model = entered.module
                if (
                    sharded
                    and entered.uncovered
                    and not (entered.sharded or entered.borrows or trace.escaped(model))
                    and any(trace.related(model, module) for module in stepped)
                    and not any(trace.related(model, module) for module in sharded)
                ):
                    return entered
        return None

    def entries(self) -> Iterator[tuple[Location, Entry]]:
        """What is saved, and where."""
        for saved in self.of(Saved, AsyncSaved):
            for entry in saved.entries or ():
                yield saved.at, entry

    def saved(self, kind: Kind) -> Entry | None:
        """The first state of a kind that is saved."""
        return next((entry for _, entry in self.entries() if entry.kind is kind), None)

    def saved_in(self, form: Form) -> Location | None:
        """Where state of a form is saved first."""
        return next((at for at, entry in self.entries() if entry.form is form), None)
