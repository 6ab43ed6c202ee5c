"""Linting files: each is read, judged and searched for suppressions, in several processes where that pays."""

from __future__ import annotations

import gc
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from . import elsewhere, suppressions
from .errors import UserError
from .events import Location
from .findings import Finding
from .reader import Reading, mentions_api, read
from .rules import RULES, judge
from .rules.unjudged import unjudged
from .sources import Source, TooLarge, decode
from .suppressions import Suppression
from .target import Target
from .trace import Note, Trace
from .workers import map_forked

if TYPE_CHECKING:
    from .cache import Cache
    from .checklist import Verdict

PARALLEL_FROM = 150_000  # bytes to read closely; below, starting processes takes longer than they save


@dataclass
class Outcome:
    """What linting one file gave, suppressed findings included.

    `comments`: the suppressions in the file and in each module of the project that a finding is in.
    `files`: the names of those that the program consists of, as far as they were read.
    `checklists`: by workflow, what the program shows of its items, whatever the rules find; empty for a file that is
    no program.
    `text`, `content`: what standard input held, which nobody can read again.
    """

    name: str
    findings: list[Finding] = field(default_factory=list)
    comments: list[Suppression] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    files: tuple[str, ...] = ()
    checklists: dict[str, list[Verdict]] = field(default_factory=dict)
    text: str | None = None
    content: bytes | None = None
    problem: str | None = None  # why it could not be linted


def lint(
    sources: Sequence[tuple[Source, str | None]], workflows: Sequence[str] = (), *, cached: bool = False
) -> list[Outcome]:
    """Lint each file by the whole rule book, for the release of torch beside it; one outcome a file, in order.

    `workflows` are those whose items are judged too. `cached`: where there is much to read, take what was found before
    and still holds from the user's cache, and keep there what is found; not where workflows are judged.
    """
    contents = [_content(source) for source, _ in sources]
    todo = [
        (source, content, torch)
        for (source, torch), content in zip(sources, contents, strict=True)
        if not isinstance(content, Outcome)
    ]
    todo.sort(key=lambda one: -len(one[1]))  # the longest first, so that the processes end together
    collects = gc.isenabled()
    gc.disable()  # syntax trees are many objects, walks leave no cycles behind: looking for some is a tenth of the time
    try:
        if sum(len(content) for _, content, _ in todo) < PARALLEL_FROM or len(todo) < 2:
            judged = [lint_one(*one, workflows=workflows) for one in todo]
        elif cached and not workflows:
            judged = _lint_what_changed(todo)
        else:
            judged = map_forked(lambda one: lint_one(*one, workflows=workflows), todo, _crashed)
    finally:
        if collects:
            gc.enable()
    if any(finding.code in elsewhere.CODES for outcome in judged for finding in outcome.findings):
        read = ((source.name, _bytes(source)) for source, _ in sources if source.path is not None)
        files = [(name, content) for name, content in read if content is not None]
        for outcome in judged:
            outcome.findings = elsewhere.kept(outcome.findings, outcome.name, files)
    by_name = {outcome.name: outcome for outcome in judged}
    return [c if isinstance(c, Outcome) else by_name[s.name] for (s, _), c in zip(sources, contents, strict=True)]


def _lint_what_changed(todo: Sequence[tuple[Source, bytes, str | None]]) -> list[Outcome]:
    """The outcomes of those that are as they were, from the cache; the others are linted, and kept there."""
    from .cache import Cache

    cache = Cache.of_user()
    known = {one[0].name: outcome for one in todo if cache and (outcome := _kept(cache, *one)) is not None}
    rest = [one for one in todo if one[0].name not in known]
    if rest:
        found = map_forked(lambda one: lint_one(*one, cache=cache), rest, _crashed)
        known.update((outcome.name, outcome) for outcome in found)
        if cache is not None:
            cache.prune()
    return list(known.values())


def _kept(cache: Cache, source: Source, content: bytes, torch: str | None) -> Outcome | None:
    """What was found in a file before, if it still holds."""
    if source.path is None:
        return None
    kept = cache.get(_key(cache, source.path, source.name, content, torch), source.path)
    if kept is None:
        return None
    return Outcome(source.name, kept.findings, kept.comments, kept.notes, kept.files)


def _keep(cache: Cache, source: Source, content: bytes, torch: str | None, outcome: Outcome, reading: Reading) -> None:
    """Keep what was found in a file, unless something went wrong that may not the next time."""
    if source.path is not None and not any(note.fault for note in outcome.notes):
        from .cache import Kept

        key = _key(cache, source.path, source.name, content, torch)
        cache.put(key, Kept(outcome.findings, outcome.comments, outcome.notes, outcome.files), reading.consulted)


def _key(cache: Cache, path: Path, name: str, content: bytes, torch: str | None) -> str:
    """What an entry is found by: the release of torch is as given, or as others than the file itself say."""
    pin = Target(path, "", torch).pin
    return cache.key(path, name, content, f"{pin.release} {pin.said}" if pin is not None else None)


def _bytes(source: Source) -> bytes | None:
    """The file's content, also where the file is of no interest by itself; None where it cannot be read."""
    try:
        return source.content()
    except UserError:
        return None


def _content(source: Source) -> bytes | Outcome:
    """The file's content, or the outcome where that needs no reading."""
    try:
        content = source.content()
    except TooLarge as error:
        if source.named:
            return Outcome(source.name, problem=str(error))
        return Outcome(source.name, notes=[Note(Location(source.name, 1), "the file is too large to be source")])
    except UserError as error:
        return Outcome(source.name, problem=str(error))
    # Met in a folder and of no interest, or named and then read whatever it holds.
    return content if source.named or mentions_api(content) else Outcome(source.name)


def lint_one(
    source: Source,
    content: bytes,
    torch: str | None = None,
    texts: Mapping[str, str] | None = None,
    workflows: Sequence[str] = (),
    cache: Cache | None = None,
) -> Outcome:
    """Lint one file by the whole rule book. Never raises: what went wrong is the outcome's `problem`.

    `texts` holds, by their real paths, what some modules of its program are taken to contain. What is found is kept in
    `cache`.
    """
    outcome = Outcome(source.name)
    texts = texts or {}
    try:
        text = decode(source.name, content)
        if source.path is None:
            outcome.text, outcome.content = text, content
        reading = read(Path(source.name), text=text, torch=torch, texts=texts)
        outcome.files = reading.files
        outcome.findings = judge(reading.traces, RULES)
        if workflows:
            outcome.checklists = _checklists(reading.traces, workflows, source.named)
        outcome.notes = [note for trace in reading.traces for note in trace.notes] + unjudged(reading.traces)
        outcome.comments = suppressions.find(source.name, text)
        for file in {finding.at.file for finding in outcome.findings} - {source.name}:
            other = texts.get(os.path.realpath(file))
            outcome.comments += suppressions.find(file, other or decode(file, Path(file).read_bytes()))
        if cache is not None:
            _keep(cache, source, content, torch, outcome, reading)
    except UserError as error:
        outcome.problem = str(error)
    except Exception as error:  # ours, not the user's; the other files are judged all the same
        outcome.problem = f"{source.name}: the linter failed ({type(error).__name__}: {error}); please report it"
    return outcome


def _checklists(traces: Sequence[Trace], workflows: Sequence[str], named: bool) -> dict[str, list[Verdict]]:
    """The items of each workflow; nothing for a module that was met in a folder."""
    from .checklist import WORKFLOWS, Seen

    seen = Seen(traces)
    return {letter: WORKFLOWS[letter].judged(seen) for letter in workflows} if named or seen.is_program else {}


def _crashed(one: tuple[Source, bytes, str | None]) -> Outcome:
    return Outcome(one[0].name, problem=f"{one[0].name}: the linter's process died; please report it")
