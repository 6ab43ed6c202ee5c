"""What all hooks share: writing an event with its place and circumstances, refs with names, and wrapping a function."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import sys
import threading
import time
import traceback
from collections.abc import Callable, Generator
from types import FrameType
from typing import Any

import torch

from ..events import Circumstances, Event, Exited, Location, Ref, to_json
from ..launch.places import Settings
from .faults import Faults
from .frames import Places, ours, programs, stack, variable
from .identity import Identities
from .record import Recorder

Handler = Generator[None, Any, None]


class Call:
    """One call of a wrapped function: a handler may read its arguments, and `error` after it has raised."""

    def __init__(
        self, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], frame: FrameType | None
    ) -> None:
        self.original = original
        self.args = args
        self.kwargs = kwargs
        self.frame = frame
        self.error: BaseException | None = None

    def __getitem__(self, name: str) -> Any:
        """An argument by name, its default where it was not given, None where there is no such parameter."""
        return self._arguments.get(name)

    @functools.cached_property
    def _arguments(self) -> dict[str, Any]:
        try:
            bound = _signature(self.original).bind(*self.args, **self.kwargs)
        except TypeError:
            return {}  # a call that is about to raise
        bound.apply_defaults()
        return dict(bound.arguments)


@functools.cache
def _signature(function: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(function)


class Observer:
    """The probe of one rank."""

    def __init__(self, settings: Settings, rank: int) -> None:
        self.settings = settings
        self.rank = rank
        self.recorder = Recorder(settings.places.records(rank))
        self.identities = Identities()
        self.places = Places(settings.cwd)
        self.steps = 0  # optimizer steps finished
        self.faults = Faults(settings, rank)
        self._named = set[int]()
        self._stacks = dict[tuple[tuple[str, int, int], ...], int]()  # those of collectives, by number

    # --- events ---

    def emit(self, event: type[Event], frame: FrameType | None, *, order: int | None = None, **fields: Any) -> int:
        """Write an event and return its order; a collective one counts as unfinished until `returned`."""
        main_thread = threading.current_thread() is threading.main_thread()
        when = Circumstances(rank=self.rank, step=self.steps, main_thread=main_thread)
        order = self.recorder.order() if order is None else order
        written = event(order=order, at=self.places.of(frame), when=when, **fields)
        self.recorder.write(to_json(written))
        return order

    def write(self, event: Event) -> None:
        """Write an event that was put together elsewhere, under this rank's circumstances."""
        self.recorder.write(to_json(dataclasses.replace(event, when=Circumstances(rank=self.rank, step=self.steps))))

    def calling(self, event: type[Event], frame: FrameType | None, **fields: Any) -> Handler:
        """The handler of a collective: the event when it is entered, a note when it has returned."""
        order = self.emit(event, frame, **fields)
        self.entered(order)
        yield
        self.returned(order)

    def entered(self, order: int) -> None:
        """Note that the call of this event has begun, and by which calls of the program's."""
        frames = stack()
        if frames not in self._stacks:
            self._stacks[frames] = len(self._stacks)
            self.recorder.write({"note": "stack", "id": self._stacks[frames], "frames": frames})
        self.recorder.write(
            {"note": "entered", "order": order, "time": time.monotonic(), "stack": self._stacks[frames]}
        )

    def returned(self, order: int) -> None:
        """Note that the call of this event has returned."""
        self.recorder.write({"note": "returned", "order": order})

    def took(self, order: int, what: str, began: float) -> None:
        """Note that something of this event has lasted until now (`timings.py` says what there is)."""
        self.recorder.write({"note": "span", "order": order, "what": what, "began": began, "ended": time.monotonic()})

    def exited(self, code: int, error: str | None) -> None:
        """Write the end of the program."""
        place = Location(self.places.shown(self.settings.script), 1)
        order = self.recorder.order()
        self.write(Exited(order=order, at=place, code=code, error=error))

    # --- refs ---

    def ref(self, value: object, frame: FrameType | None, otherwise: str) -> Ref:
        """The ref of an object, named as the program names it at this place if it was not named before."""
        ref = self.identities.of(value, otherwise)
        if ref.id not in self._named and (name := variable(frame, value)) is not None:
            self.name(ref, name)
        return ref

    def name(self, ref: Ref, name: str) -> None:
        """Note how the program calls an object; the first name stays."""
        if ref.id not in self._named:
            self._named.add(ref.id)
            self.recorder.write({"note": "name", "id": ref.id, "name": name})

    # --- wrapping ---

    def wrap(
        self,
        owners: list[Any],
        name: str,
        handle: Callable[[Call], Handler],
        *,
        by_program: bool = True,
        inherited: bool = False,
    ) -> None:
        """Replace a function, in every owner that has it, by one that lets `handle` run around each call.

        `handle` is a generator: what is before its `yield` runs before the call, what comes after gets the result.
        With `by_program`, only around calls that the program makes itself. An error of ours never reaches the
        program: it is noted, and the call goes on. `inherited`: a class may have the function from its bases, which
        keep theirs.
        """
        own = isinstance(owners[0], type) and not inherited
        original = vars(owners[0]).get(name) if own else getattr(owners[0], name, None)
        if original is None:
            return  # this torch does not have it

        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or not self.recorder.own:
                return original(*args, **kwargs)
            frame = sys._getframe(1)
            file = frame.f_code.co_filename
            if not programs(file) and (by_program or ours(file)):
                return original(*args, **kwargs)
            call = Call(original, args, kwargs, frame)
            steps = handle(call)
            self._advance(steps)
            try:
                result = original(*call.args, **call.kwargs)
            except BaseException as error:
                call.error = error
                self._safely(steps.close)
                raise
            self._advance(steps, result)
            return result

        static = isinstance(original, staticmethod)
        for owner in owners:
            if getattr(owner, name, None) is (original.__func__ if static else original):
                setattr(owner, name, staticmethod(wrapper) if static else wrapper)

    def _advance(self, steps: Handler, result: Any = None) -> None:
        def send() -> None:
            try:
                steps.send(result)
            except StopIteration:
                return

        self._safely(send)

    def _safely(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception:
            self.failed()

    def failed(self) -> None:
        """Note an error of the probe's own."""
        self.recorder.write({"note": "failure", "text": traceback.format_exc()})
