"""Hooks on checkpoints: DCP's saves and loads, the futures of asynchronous ones, `torch.save`, removed directories."""

from __future__ import annotations

import concurrent.futures
import os
import random
import shutil
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import staging, state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader

from ..events import (
    AsyncSaved,
    Awaited,
    DirectoryRemoved,
    Event,
    Loaded,
    RandomStateTaken,
    Ref,
    Saved,
    Seeded,
    StagerBuilt,
    TorchLoaded,
    TorchSaved,
)
from .data import Passes
from .entries import Reader, tensors_in
from .frames import behind_dynamo, program_frame, programs
from .groups import group_ref, misses
from .guard import reached_by_import
from .identity import Objects
from .modules import dtype_name
from .observer import Call, Handler, Observer
from .snapshot import snapshot


@dataclass
class _Underway:
    """A DCP call that the program made, until what it saves or loads is known: the event is written then."""

    event: type[Event]
    call: Call
    fields: dict[str, Any] = field(default_factory=dict)
    order: int | None = None
    began: float = field(default_factory=time.monotonic)
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)  # that are loaded into, by their paths


class Futures:
    """The asynchronous saves that were started."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._futures = Objects()

    def start(self, future: Future[Any], *, copying: bool = False) -> None:
        """Keep an eye on the future of a save, or of the copying of its state."""
        self._futures.set(future, "copying" if copying else "saving")

    def time(self, future: Future[Any], underway: _Underway, what: str) -> None:
        """Take the time when a future of a save is done, unless it fails."""

        def done(future: Future[Any]) -> None:
            if underway.order is not None and not future.cancelled() and future.exception() is None:
                self._observer.took(underway.order, what, underway.began)

        future.add_done_callback(done)

    def tracked(self, future: object) -> bool:
        """Whether this is the future of a save."""
        return self._futures.get(future) is not None

    def about_to_wait(self, future: object) -> None:
        """The program waits for the future of a save."""
        self._observer.faults.awaited(self._observer.steps, copying=self._futures.get(future) == "copying")

    def await_all(self) -> None:
        """Wait until no save is in flight."""
        concurrent.futures.wait(list(self._futures))


def install(observer: Observer, reader: Reader, futures: Futures, passes: Passes) -> None:
    """Hook what this module is about."""
    here = threading.local()
    stagings = Objects()  # of a stager, the staging that it was given last

    def write(underway: _Underway, expanded: Any) -> None:
        """Write the event of a DCP call, with the state that DCP got from the objects it was given."""
        if underway.order is not None:
            return
        call = underway.call
        group = call["process_group"]
        saves = underway.event is not Loaded
        contents = reader.read(call["state_dict"], expanded, call.frame, compare=saves)
        of_save: dict[str, Any] = {"replaces": _replaces(call), "underway": passes.underway()} if saves else {}
        if saves:
            of_save["misses"] = misses(expanded, group)
        underway.order = observer.emit(
            underway.event,
            call.frame,
            target=_target(call),
            series=_series(_target(call)),
            located=any(call[name] is not None for name in ("checkpoint_id", "storage_writer", "storage_reader")),
            entries=contents.entries,
            group=group_ref(observer, group),
            alone=bool(call["no_dist"]) or not torch.distributed.is_initialized(),
            **of_save,
            **underway.fields,
        )
        observer.entered(underway.order)
        if contents.digests:
            observer.recorder.write({"note": "digests", "order": underway.order, "of": contents.digests})
        if contents.buffers:
            observer.recorder.write({"note": "buffers", "order": underway.order, "of": contents.buffers})
        if not saves:
            underway.tensors = dict(tensors_in("", expanded))

    def calling(underway: _Underway) -> Handler:
        if underway.event is not Loaded:
            observer.faults.called(observer.steps, process=underway.fields.get("process", False))
        outer = getattr(here, "underway", None)
        here.underway = underway
        try:
            yield
        finally:
            here.underway = outer
            # it failed before it got anywhere, or this torch expands elsewhere
            write(underway, underway.call["state_dict"])
        assert underway.order is not None
        observer.returned(underway.order)
        observer.took(underway.order, "call", underway.began)

    def saved(call: Call) -> Handler:
        yield from calling(_Underway(Saved, call))

    def async_saved(call: Call) -> Handler:
        ref = observer.identities.new("future")
        copying = observer.identities.new("staging") if _stages_in_background(call["async_stager"]) else None
        process = getattr(call["async_checkpointer_type"], "name", "") == "PROCESS"
        imported = reached_by_import(call.frame) if process else None
        stager = call["async_stager"]
        by = None if stager is None else observer.ref(stager, call.frame, "stager")
        fields = {"future": ref, "staging": copying, "stager": by, "process": process, "imported": imported}
        underway = _Underway(AsyncSaved, call, fields)
        steps = calling(underway)
        next(steps)
        try:
            result = yield
        except GeneratorExit:
            steps.close()
            raise
        future = result.upload_completion if hasattr(result, "upload_completion") else result
        observer.identities.bind(future, ref)
        futures.start(future)
        if copying is not None and hasattr(result, "staging_completion"):
            observer.identities.bind(result.staging_completion, copying)
            futures.start(result.staging_completion, copying=True)
            stagings.set(stager, copying)
        next(steps, None)
        futures.time(future, underway, "writing")
        if hasattr(result, "staging_completion"):
            futures.time(result.staging_completion, underway, "staging")

    def stager_built(call: Call) -> Handler:
        yield
        frame = program_frame(building=call.args[0])
        observer.emit(StagerBuilt, frame, stager=observer.ref(call.args[0], frame, "stager"))

    def synchronized(call: Call) -> Handler:
        observer.faults.awaited(observer.steps, copying=True)
        began = time.monotonic()
        yield
        if (copying := stagings.get(call.args[0])) is not None:
            awaited(call, copying, began)

    def awaited(call: Call, future: Ref, began: float) -> None:
        observer.took(observer.emit(Awaited, call.frame, future=future), "wait", began)

    def loaded(call: Call) -> Handler:
        state = call["state_dict"]
        ref = observer.ref(state, call.frame, "state") if isinstance(state, dict) else None
        reader = call["storage_reader"]
        of_dcp = reader is None or type(reader) is FileSystemReader  # others have files of other names
        whole = _whole(_target(call)) if of_dcp else None
        foreign = _is_pretrained(reader)
        fields = {"state": ref, "partial": _partial(call["planner"]), "pretrained": foreign, "whole": whole}
        yield from calling(_Underway(Loaded, call, fields))

    def save_expanded(call: Call) -> Handler:  # noqa: ARG001 - what matters is what it returns
        expanded = yield
        if (underway := getattr(here, "underway", None)) is not None:
            write(underway, expanded)
            if observer.faults.state_taken():
                observer.recorder.write({"note": "snapshot", "of": snapshot(expanded)})

    def load_expanded(call: Call) -> Handler:
        if (underway := getattr(here, "underway", None)) is not None:
            write(underway, call["state_dict"])
        yield

    def metadata_read(call: Call) -> Handler:  # noqa: ARG001 - what matters is what it returns
        metadata = yield
        underway = getattr(here, "underway", None)
        if underway is None or underway.event is not Loaded or underway.order is None:
            return
        narrowed = _narrowed(underway.tensors, metadata.state_dict_metadata)
        if narrowed:
            observer.recorder.write({"note": "narrowed", "order": underway.order, "of": narrowed})

    def resulted(call: Call) -> Handler:
        future = call.args[0]
        if not futures.tracked(future):
            yield
            return
        ref = observer.identities.of(future, "future")
        futures.about_to_wait(future)
        began = time.monotonic()
        try:
            yield
        finally:
            if future.done():
                awaited(call, ref, began)

    def asked(call: Call) -> Handler:
        done = yield
        if done and futures.tracked(call.args[0]):
            observer.emit(Awaited, call.frame, future=observer.identities.of(call.args[0], "future"))

    def waited(call: Call) -> Handler:
        given = list(call["fs"])
        call.args = (given, *call.args[1:]) if call.args else call.args
        if not call.args:
            call.kwargs["fs"] = given
        for future in filter(futures.tracked, given):
            futures.about_to_wait(future)
        began = time.monotonic()
        yield
        for future in given:
            if futures.tracked(future) and future.done():
                awaited(call, observer.identities.of(future, "future"), began)

    def torch_saved(call: Call) -> Handler:
        saved = call["obj"]
        contents = reader.read(saved, saved, call.frame, compare=False)
        observer.emit(TorchSaved, call.frame, target=_file(call["f"]), entries=contents.entries)
        yield

    def torch_loaded(call: Call) -> Handler:
        weights_only = call["weights_only"]
        only = weights_only if isinstance(weights_only, bool) else None
        observer.emit(TorchLoaded, call.frame, target=_file(call["f"]), weights_only=only)
        yield

    def removed(call: Call) -> Handler:
        target = _file(call.args[0] if call.args else call["path"])
        observer.emit(DirectoryRemoved, call.frame, target=target)
        observer.faults.removing(observer.steps, target)
        yield

    def random_state_taken(call: Call) -> Handler:
        observer.emit(RandomStateTaken, call.frame)
        yield

    def seeded(call: Call) -> Handler:
        frame = behind_dynamo(call.frame)
        if frame is None or not programs(frame.f_code.co_filename):
            yield
            return
        order = observer.emit(Seeded, frame)
        if isinstance(call["seed"], int):
            observer.recorder.write({"note": "seed", "order": order, "seed": call["seed"]})
        yield

    observer.wrap([dcp, state_dict_saver], "save", saved)
    observer.wrap([dcp, state_dict_saver], "async_save", async_saved)
    if hasattr(staging, "DefaultStager"):
        observer.wrap([staging.DefaultStager], "__init__", stager_built)
        observer.wrap([staging.DefaultStager], "synchronize_staging", synchronized)
    observer.wrap([dcp, state_dict_loader], "load", loaded)
    observer.wrap([state_dict_saver], "_stateful_to_state_dict", save_expanded, by_program=False)
    observer.wrap([state_dict_loader], "_load_state_dict", load_expanded, by_program=False)
    observer.wrap([FileSystemReader], "read_metadata", metadata_read, by_program=False)
    observer.wrap([Future], "result", resulted)
    observer.wrap([Future], "exception", resulted)
    observer.wrap([Future], "done", asked)
    observer.wrap([concurrent.futures, concurrent.futures._base], "wait", waited)
    observer.wrap([torch], "save", torch_saved)
    observer.wrap([torch], "load", torch_loaded)
    observer.wrap([shutil], "rmtree", removed)
    observer.wrap([torch, torch.random], "get_rng_state", random_state_taken)
    observer.wrap([torch.cuda, torch.cuda.random], "get_rng_state", random_state_taken)
    observer.wrap([torch.cuda, torch.cuda.random], "get_rng_state_all", random_state_taken)
    observer.wrap([random], "getstate", random_state_taken)
    observer.wrap([torch, torch.random], "manual_seed", seeded, by_program=False)


def _stages_in_background(stager: Any) -> bool:
    config = getattr(stager, "_config", None)
    return bool(getattr(config, "use_async_staging", False))


def _whole(target: str | None) -> bool | None:
    """Whether there is metadata in a local directory; None where there is no such directory."""
    if target is None or not (folder := Path(target)).is_dir():
        return None
    return any(folder.glob("*.metadata"))


def _narrowed(held: dict[str, torch.Tensor], stored: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """The dtypes stored and held of the tensors that are loaded into fewer bits."""
    found = {}
    for name, tensor in held.items():
        dtype = getattr(getattr(stored.get(name), "properties", None), "dtype", None)
        if not isinstance(dtype, torch.dtype) or not (dtype.is_floating_point and tensor.is_floating_point()):
            continue
        if dtype.itemsize > tensor.dtype.itemsize:
            found[name] = dtype_name(dtype), dtype_name(tensor.dtype)
    return found


def _is_pretrained(reader: object) -> bool:
    of_hugging_face = getattr(dcp, "HuggingFaceStorageReader", None)  # since torch 2.9
    return of_hugging_face is not None and isinstance(reader, of_hugging_face)


def _series(target: str | None) -> str | None:
    """The folder that a checkpoint's directory lies in."""
    return None if target is None else target.rstrip("/").rpartition("/")[0]


def _partial(planner: object) -> bool | None:
    if planner is None:
        return False
    return planner.allow_partial_load if type(planner) is DefaultLoadPlanner else None


def _replaces(call: Call) -> bool | None:
    """Whether a save goes where a finished checkpoint is; only the rank that coordinates knows.

    Any other rank may be behind it, or ahead of it, in moving things about.
    """
    target = _target(call)
    alone = call["no_dist"] or not torch.distributed.is_initialized()
    if target is None or not (alone or torch.distributed.get_rank(call["process_group"]) == 0):
        return None
    return (Path(target) / ".metadata").exists()


def _target(call: Call) -> str | None:
    if (given := call["checkpoint_id"]) is not None:
        return _file(given)
    storage = call["storage_writer"] or call["storage_reader"]
    path = getattr(storage, "checkpoint_id", None) or getattr(storage, "path", None)
    return None if path is None else _file(path)


def _file(given: Any) -> str | None:
    if isinstance(given, (str, os.PathLike)):
        path = os.fspath(given)
        return path if isinstance(path, str) else os.fsdecode(path)
    name = getattr(given, "name", None)
    return name if isinstance(name, str) else None
