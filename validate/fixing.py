"""Applying fixes: proposals are tried on the program in memory, and those that hold are written, or shown as a diff.

A fix holds when the file still parses and, read again, each program that the file is part of has this finding no more
and no other one that it did not have. Fixes that touch the same lines are made one after the other, in passes.
"""

from __future__ import annotations

import codecs
import difflib
import os
import stat
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .errors import UserError
from .events import Location
from .files import replace_file
from .findings import Finding
from .fixes import FIXERS, Proposal, Script
from .fixes.proposal import Edit, disturbed, edited, edits_between, lines_of
from .linter import Outcome, lint_one
from .sources import Source, decode, encoding_of

PASSES = 50  # at most; each mends something, so this many mean that fixes undo each other


@dataclass(frozen=True)
class Fix:
    """A proposal that holds, for the finding, as edits of the file as it was read."""

    finding: Finding
    file: str  # its real path
    edits: tuple[Edit, ...]
    message: str
    safe: bool

    @property
    def applicability(self) -> str:
        """`safe` or `unsafe`."""
        return "safe" if self.safe else "unsafe"


@dataclass
class Text:
    """A file that may be changed: its bytes as they were found, and its text as it is to be."""

    source: Source
    content: bytes
    encoding: str
    text: str

    @classmethod
    def of(cls, source: Source, content: bytes) -> Text | None:
        """None for a file that would not come back byte for byte, even unchanged."""
        encoding = encoding_of(content)
        found = cls(source, content, "utf-8" if encoding == "utf-8-sig" else encoding, decode(source.name, content))
        return found if found.encoded() == content and not found.text.startswith("\ufeff") else None

    def encoded(self, text: str | None = None) -> bytes:
        """The bytes of a text of this file, its own by default."""
        mark = codecs.BOM_UTF8 if self.content.startswith(codecs.BOM_UTF8) else b""
        return mark + (self.text if text is None else text).encode(self.encoding)

    def write(self) -> None:
        """Put the text in the place of the file at once, with its permissions.

        Raises UserError when the file was changed meanwhile or cannot be written.
        """
        path = Path(os.path.realpath(self.source.name))  # a link stays a link
        try:
            if path.read_bytes() != self.content:
                raise UserError(f"{self.source.name}: changed while it was fixed; nothing was written, run it again")
            if not os.access(path, os.W_OK):
                raise UserError(f"{self.source.name}: not fixed: it may not be written; change its permissions")
            replace_file(path, self.encoded(), stat.S_IMODE(path.stat().st_mode))
        except OSError as error:
            raise UserError(f"{self.source.name}: not fixed: {error.strerror}; expected a file to write") from error

    def diff(self) -> bytes:
        """A unified diff from the file to its text, in the file's own encoding; empty where nothing changes."""
        before, after = (lines_of(content.decode("latin-1")) for content in (self.content, self.encoded()))
        name = os.fsencode(self.source.name).decode("latin-1")  # bytes as characters: each comes back as it was
        lines = [
            line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
            for line in difflib.unified_diff(before, after, name, name)
        ]
        return "".join(lines).encode("latin-1")


@dataclass
class Fixed:
    """What fixing gave: the outcomes as they are after it, what was fixed, and the files that differ now."""

    outcomes: list[Outcome]
    fixes: list[Fix] = field(default_factory=list)
    texts: list[Text] = field(default_factory=list)


@dataclass(frozen=True)
class Program:
    """A file that was linted, for which torch, and what that gave."""

    source: Source
    torch: str | None
    outcome: Outcome


class Fixing:
    """The files on the way from findings to fixes. Only those that the user named, or whose folder, change."""

    def __init__(self, programs: Sequence[Program]) -> None:
        self._programs = list(programs)
        self._sources = {os.path.realpath(p.source.name): p for p in programs}
        self._texts: dict[str, Text | None] = {}

    def run(self, wanted: Callable[[list[Outcome]], Iterable[Finding]], unsafe: bool) -> Fixed:
        """Mend what can be mended of the findings that are `wanted`, until nothing changes any more."""
        fixed: list[Fix] = []
        for _ in range(PASSES):
            findings = list(wanted([p.outcome for p in self._programs]))
            made = self._pass(findings, unsafe)
            if not made:
                break
            fixed += made
        texts = [t for t in self._texts.values() if t is not None and t.encoded() != t.content]
        return Fixed([p.outcome for p in self._programs], fixed, texts)

    def fixes_of(self, findings: Sequence[Finding]) -> dict[tuple[str, Location], Fix]:
        """For each finding that has one, by code and place: the first proposal that holds in a program of the finding.

        Proposals that do not disturb each other are tried at once, for to read a program again takes as long as to
        lint it.
        """
        found: dict[tuple[str, Location], Fix] = {}
        by_file: dict[str, list[Finding]] = {}
        for finding in findings:
            if finding.code in FIXERS:
                by_file.setdefault(finding.at.file, []).append(finding)
        for here in by_file.values():
            together = _undisturbed([next(self._fixes(finding), None) for finding in here])
            if together and self._try(together, self._shows(together)) is not None:
                found.update({(fix.finding.code, fix.finding.at): fix for fix in together})
            for finding in here:
                if (finding.code, finding.at) not in found and (fix := self._first(finding)) is not None:
                    found[finding.code, finding.at] = fix
        return found

    def _first(self, finding: Finding, unsafe: bool = True) -> Fix | None:
        """The first proposal that holds in a program that shows the finding."""
        fixes = (fix for fix in self._fixes(finding) if fix.safe or unsafe)
        return next((fix for fix in fixes if self._try([fix], self._shows([fix])) is not None), None)

    def _pass(self, findings: Sequence[Finding], unsafe: bool) -> list[Fix]:
        """Apply fixes that do not disturb each other: the likeliest for each finding at once, else those that hold."""
        likely = [next((f for f in self._fixes(finding) if f.safe or unsafe), None) for finding in findings]
        together = _undisturbed(likely)
        after = self._try(together) if together else None
        if together and after is None:
            together = _undisturbed([self._first(finding, unsafe) for finding in findings])
            after = self._try(together) if together else None
            if together and after is None:
                together, after = self._one_by_one(together)
        if after is None:
            return []
        for file, text in self._edited(together).items():
            known = self._texts[file]
            assert known is not None
            known.text = text
        self._programs = [after.get(p.source.name, p) for p in self._programs]
        return together

    def _one_by_one(self, fixes: Sequence[Fix]) -> tuple[list[Fix], dict[str, Program] | None]:
        """Those of the fixes that hold together in all programs."""
        kept: list[Fix] = []
        after: dict[str, Program] | None = None
        for fix in fixes:
            if (found := self._try([*kept, fix])) is not None:
                kept, after = [*kept, fix], found
        return kept, after

    def _shows(self, fixes: Sequence[Fix]) -> list[Program]:
        """One program that shows the finding of each fix."""
        found: dict[str, Program] = {}
        for fix in fixes:
            key = (fix.finding.code, fix.finding.at)
            showing = (p for p in self._programs if any((f.code, f.at) == key for f in p.outcome.findings))
            if (program := next(showing, None)) is not None:
                found[program.source.name] = program
        return list(found.values())

    def _fixes(self, finding: Finding) -> Iterator[Fix]:
        """The fixes to try for a finding, each once."""
        fixer = FIXERS.get(finding.code)
        file = os.path.realpath(finding.at.file)
        text = self._text(file) if fixer is not None else None
        if fixer is None or text is None:
            return
        seen = {text.text}
        for proposal in _proposals(fixer, text.text, finding):
            if proposal.text not in seen:
                seen.add(proposal.text)
                yield Fix(finding, file, edits_between(text.text, proposal.text), proposal.message, proposal.safe)

    def _text(self, file: str) -> Text | None:
        """The file, None where it is not to be changed."""
        if file not in self._texts:
            self._texts[file] = _read(self._sources.get(file))
        return self._texts[file]

    def _edited(self, fixes: Sequence[Fix]) -> dict[str, str]:
        files = {fix.file for fix in fixes}
        texts = {file: self._texts[file] for file in files}
        return {
            file: edited(text.text, [e for fix in fixes if fix.file == file for e in fix.edits])
            for file, text in texts.items()
            if text is not None
        }

    def _try(self, fixes: Sequence[Fix], within: Sequence[Program] | None = None) -> dict[str, Program] | None:
        """The programs (of all, or of `within`) that the fixes change, read again; None where a fix does not hold."""
        texts = self._edited(fixes)
        for file, text in texts.items():
            before = self._texts[file]
            assert before is not None
            if (not _compiles(text) and _compiles(before.text)) or not _encodes(before, text):
                return None
        overlay = {file: text.text for file, text in self._texts.items() if text is not None} | texts
        found: dict[str, Program] = {}
        for program in self._programs if within is None else within:
            own = os.path.realpath(program.source.name)
            if own in texts or any(os.path.realpath(file) in texts for file in program.outcome.files):
                known = self._text(own)
                content = known.encoded(overlay.get(own, known.text)) if known is not None else _content(program)
                if content is None:
                    return None
                outcome = lint_one(program.source, content, program.torch, overlay)
                if outcome.problem is not None or not _better(program.outcome, outcome, fixes):
                    return None
                found[program.source.name] = Program(program.source, program.torch, outcome)
        return found


def _better(before: Outcome, after: Outcome, fixes: Sequence[Fix]) -> bool:
    """Whether each fixed finding is gone, and no other one has come."""
    allowed = _counted(before.findings)
    mended = {(fix.finding.code, fix.finding.at) for fix in fixes}
    allowed.subtract(_counted(f for f in before.findings if (f.code, f.at) in mended))
    left = _counted(after.findings)
    return all(number <= allowed[key] for key, number in left.items())


def _counted(findings: Iterable[Finding]) -> Counter[tuple[str, str]]:
    return Counter((f.code, os.path.realpath(f.at.file)) for f in findings)


def _undisturbed(fixes: Iterable[Fix | None]) -> list[Fix]:
    """The fixes without those that disturb one before them."""
    kept: list[Fix] = []
    for fix in fixes:
        if fix is not None and not any(fix.file == o.file and disturbed(fix.edits, o.edits) for o in kept):
            kept.append(fix)
    return kept


def _proposals(
    fixer: Callable[[Script, Finding], Iterator[Proposal]], text: str, finding: Finding
) -> Iterator[Proposal]:
    """What a fixer proposes. One that comes to a text that does not parse has nothing more to propose."""
    try:
        yield from fixer(Script(text), finding)
    except Exception:  # whatever surprises a fixer, the findings are there without it
        return


def _compiles(text: str) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            compile(text, "<fixed>", "exec", dont_inherit=True)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return False
    return True


def _encodes(before: Text, text: str) -> bool:
    try:
        return decode(before.source.name, before.encoded(text)) == text
    except (UnicodeError, UserError):
        return False


def _read(program: Program | None) -> Text | None:
    content = _content(program) if program is not None else None
    return Text.of(program.source, content) if program is not None and content is not None else None


def _content(program: Program) -> bytes | None:
    if program.source.path is None:
        return program.outcome.content
    try:
        return program.source.content()
    except UserError:
        return None
