"""The proof `export`: what leaves the job equals the weights in memory.

Two things may leave it. A file of the whole model that the script writes itself: a generated script is asked for one if
it can write one, and what any other gives to `torch.save` is read where it was seen to come from the trained model. And
a checkpoint that is converted: one of a run is brought into one file as `fsdp2 convert` does. What is in the file must
be what the ranks had in memory after that step, tensor by tensor, bit for bit, or cast to a dtype as a whole.
"""

from __future__ import annotations

import argparse
import contextlib
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .. import convert
from ..conversion.entries import open_source
from ..errors import UserError
from ..events import Entry, Form, Kind, OptimizerBuilt, TorchSaved, Via
from ..probe.whole import WholeState, whole_state
from ..report import plural
from ..trace import Trace
from .base import CannotProve, DoesNotApply, Proof, Verdict
from .bench import Bench, Ran
from .exported import Examined, examine, find, models

SHORT = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}  # dtypes as a generated script is asked for them
SHOWN = 3  # problems told of one file


class Export(Proof):
    """Reads back what the script exports, and one of its checkpoints converted."""

    name = "export"
    claim = "the exported file equals the weights in memory"

    def prove(self, bench: Bench) -> Verdict:
        bench.straight.trained()
        figures: dict[str, Any] = {}
        passed, failed, not_told = list[str](), list[str](), list[str]()
        for what, attempt in (("file", _written), ("converted", _converted)):
            try:
                subject, examined = attempt(bench)
            except UserError as error:
                not_told.append(str(error))
                continue
            figures[what] = {
                "tensors": examined.compared,
                "casts": sorted(examined.casts),
                "problems": examined.problems,
            }
            cast = f", cast to {' and '.join(sorted(examined.casts))}" if examined.casts else ""
            if examined.problems:
                more = len(examined.problems) - SHOWN
                told = "; ".join(examined.problems[:SHOWN]) + (f"; and {more} more" if more > 0 else "")
                failed.append(f"{subject} is not what was in memory: {told}")
            else:
                equal = f"{plural(examined.compared, 'tensor')} equal bit for bit what was in memory{cast}"
                passed.append(f"{subject}: {equal}")
        if not passed and not failed:
            raise DoesNotApply(f"{bench.subject.script.name}: {'; '.join(not_told)}")
        reason = "; ".join([*failed, *passed, *not_told])
        return Verdict(name=self.name, status="fail" if failed else "pass", reason=reason, figures=figures)


def _written(bench: Bench) -> tuple[str, Examined]:
    """What the script writes itself. Raises CannotProve where it writes no such file."""
    header = bench.subject.header
    asked = header.answers.get("export", "none") if header is not None else None
    if asked == "none":
        raise DoesNotApply("it was generated without --export")
    return _own_file(bench) if asked is None else _asked_file(bench, asked)


def _asked_file(bench: Bench, kind: str) -> tuple[str, Examined]:
    """That of a generated script."""
    path = bench.file(f"weights.{kind}")
    ran, state = _run(bench, bench.straight.steps, ("--export", str(path)))
    if not path.exists():
        raise CannotProve("it was ended before it exports")
    given = [b for a, b in zip(ran.run.job.args, ran.run.job.args[1:], strict=False) if a == "--export-dtype"]
    source = open_source(str(path))
    if (held := find(source, models(state))) is None:
        return path.name, Examined("", problems=["it holds hardly any of the model's weights"])
    dtype = SHORT.get(given[-1] if given else "fp32")
    return path.name, examine(source, *held, dtype=dtype, every_name=kind == "pt")


def _own_file(bench: Bench) -> tuple[str, Examined]:
    """That of any other script: the last that it gave the model's weights to."""
    saves = [event for event in _weights(bench.straight.traces[0]) if event.when.step]
    if not saves:
        raise DoesNotApply("it writes no file that was seen to come from the trained model's state dict")
    step = saves[-1].when.step or 0
    ran, state = _run(bench, step, ())
    again = [event for event in _weights(ran.traces[0]) if event.when.step == step and event.target is not None]
    for event in reversed(again):
        path = ran.run.job.cwd / (event.target or "")
        source = open_source(str(path))
        if (held := find(source, models(state))) is not None:
            examined = examine(source, *held, dtype=None, every_name=True)
            if examined.differ and any(e.via is Via.VALUE for e in _of_model(event)):
                raise CannotProve(f"{path.name} holds other values under the model's names, such as their average")
            return path.name, examined
    raise CannotProve("its file of the model's state dict holds other names than the model, or cannot be found")


def _weights(trace: Trace) -> Iterator[TorchSaved]:
    """The files that a trace gives the whole state dict of a model to that an optimizer steps."""
    trained = {ref.id for built in trace.of(OptimizerBuilt) for ref in built.modules}
    todo = list(trained)
    while todo:  # and what holds them
        outer = trace.holders.get(todo.pop(), frozenset()) - trained
        trained |= outer
        todo += outer
    for event in trace.of(TorchSaved):
        if any(entry.of is not None and entry.of.id in trained for entry in _of_model(event)):
            yield event


def _of_model(event: TorchSaved) -> list[Entry]:
    return [e for e in event.entries or () if e.kind is Kind.MODEL and e.form in (Form.FULL, Form.PLAIN)]


def _run(bench: Bench, step: int, args: tuple[str, ...]) -> tuple[Ran, WholeState]:
    """A run from scratch, and the state that it had after a step."""
    ran = bench.run(bench.place(), whole_after=step, args=args)
    if ran.broken:
        raise CannotProve(ran.broken)
    state = whole_state(ran.run)
    if state is None:
        raise CannotProve(f"it did not come to step {step}")
    return ran, state


def _converted(bench: Bench) -> tuple[str, Examined]:
    """What `convert` makes of a checkpoint."""
    stopped = bench.stopped
    if stopped.broken:
        raise CannotProve(stopped.broken)
    found = models(stopped.state)
    for folder in stopped.saved_to():
        source = open_source(str(folder))
        if (held := find(source, found)) is None:
            continue
        target = bench.file("converted.pt")
        _convert(folder, target, held[1])
        converted = open_source(str(target))
        if (again := find(converted, found)) is None:
            return "the converted checkpoint", Examined("", problems=["it holds hardly any of the model's weights"])
        examined = examine(converted, *again, dtype=None, every_name=False)
        return f"the checkpoint of step {stopped.saved}, converted", examined
    raise CannotProve("no folder that it saves to holds the model under its own names, so that none was converted")


def _convert(folder: Path, target: Path, prefix: str) -> None:
    patterns = ([f"{prefix}*"], [f"{prefix}*=*"]) if prefix else ([], [])
    asked = argparse.Namespace(
        source=str(folder), destination=str(target), keys=patterns[0], rename=patterns[1], dtype=None,
        shard_size=None, format="json",
    )  # fmt: skip
    with contextlib.redirect_stdout(io.StringIO()):
        code = convert.run(asked)
    if code != 0:
        raise CannotProve("what `convert` wrote is not what it read")
