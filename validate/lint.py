"""Find what is wrong in training scripts that use FSDP2 or DCP, without running or importing them.

Reads files and folders, follows each program from its entry point through the project's own modules, and judges it by
the rule book. A finding can be accepted on its line: `# fsdp2: ignore[FS401] why`. What the reader cannot know it
does not judge; --verbose tells what that was. Needs neither torch nor a GPU.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from . import report, suppressions, target
from .errors import UserError
from .events import Location
from .findings import Finding, Severity
from .linter import Outcome, lint
from .records import record
from .rules import RULES
from .rules.base import PROBE, READER
from .selection import NAMES, matching, split
from .settings import Settings, nearest
from .sources import Source, find_sources
from .suppressions import Suppression
from .trace import Note

if TYPE_CHECKING:
    from .checklist import Verdict, Workflow
    from .fixing import Fixed

EXAMPLES = (
    "fsdp2 lint train.py",
    "fsdp2 lint src/ --ignore FS202 --format json",
    "fsdp2 lint src/ --min-severity warn --format sarif > fsdp2.sarif",
    "fsdp2 lint train.py --checklist a",
    "fsdp2 lint src/ --diff --unsafe-fixes",
    "fsdp2 lint - --stdin-filename train.py < train.py",
)
CHECKLIST_LIMIT = 8  # checklists shown as text, some twenty lines each
FORMATS = ("text", "json", "sarif", "github")
# What the reader does not find of others, a run may; so a comment that accepts them is not known to be of no use.
READER_ALONE = frozenset(rule.code for rule in RULES if READER in rule.seen_by and PROBE not in rule.seen_by)


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `lint`."""
    parser.add_argument("paths", nargs="+", metavar="PATH", help="files or folders; - reads standard input")
    parser.add_argument(
        "--stdin-filename",
        metavar="FILE",
        help="the name that standard input goes by; imports are looked up from there",
    )
    parser.add_argument("--format", choices=FORMATS, default="text", help="default: text")
    parser.add_argument(
        "--select", metavar="CODES", help="judge by these rules only: codes, their beginnings or names, as in FS4,FS601"
    )
    parser.add_argument("--ignore", metavar="CODES", help="leave these rules out")
    parser.add_argument(
        "--min-severity",
        choices=[s.value for s in Severity],
        help="leave out what is milder (default: info)",
    )
    parser.add_argument(
        "--torch",
        metavar="RELEASE",
        help="the torch that the scripts are written for (default: as the project pins it)",
    )
    parser.add_argument(
        "--checklist", choices=("a", "b", "all"), help="tick off SKILL.md's workflow A (retrofit FSDP2) or B (add DCP)"
    )
    parser.add_argument("--fix", action="store_true", help="mend what can be mended mechanically and safely, then lint")
    parser.add_argument("--diff", action="store_true", help="print what --fix would change, and change nothing")
    parser.add_argument(
        "--unsafe-fixes",
        action="store_true",
        help="with --fix or --diff: also fixes that may change what else the program does; look at them",
    )
    parser.add_argument("--statistics", action="store_true", help="count the findings of each rule (text and json)")
    parser.add_argument("--exit-zero", action="store_true", help="exit with 0 whatever is found")
    parser.add_argument("--verbose", action="store_true", help="also tell what the reader could not know")
    parser.add_argument("--no-cache", action="store_true", help="read every file anew, and keep nothing of it")


def run(arguments: argparse.Namespace) -> int:
    """Lint, fix where asked, print, and return the exit code."""
    _check(arguments)
    linted = list(_linted(arguments))
    fixing, fixed, hidden = None, None, 0
    if arguments.fix or arguments.diff or arguments.format == "json":
        from .fixing import Fixing, Program

        fixing = Fixing([Program(one.source, one.choice.torch, one.outcome) for one in linted])
        if arguments.fix or arguments.diff:
            fixed = fixing.run(lambda outcomes: _result(linted, outcomes).unsuppressed(), arguments.unsafe_fixes)
    result = _result(linted, [one.outcome for one in linted] if fixed is None else fixed.outcomes)
    findings = result.unsuppressed()
    checklists = _checklists(linted, findings) if arguments.checklist is not None else []
    if fixing is not None and fixed is not None and not arguments.unsafe_fixes:
        hidden = len(fixing.fixes_of(findings))
    if fixed is not None and arguments.diff:
        return _show_diff(arguments, result, fixed, hidden)
    out = sys.stdout
    if fixed is not None:
        for text in fixed.texts:
            if text.source.path is not None:
                text.write()
        if any(one.source.path is None for one in linted):
            out = sys.stderr  # standard output is for the fixed text, as it is where nothing was to be fixed
            _print_fixed_input(linted, fixed)
    if arguments.format == "json":
        fixes = fixing.fixes_of(findings) if fixing is not None else {}
        document = {
            "version": 1,
            "files": result.files,
            "findings": [report.as_json(f, fixes.get((f.code, f.at))) for f in findings],
        }
        if fixed is not None:
            document["fixed"] = [report.fixed_as_json(fix) for fix in fixed.fixes]
        if arguments.statistics:
            document["statistics"] = [
                {"code": code, "name": NAMES[code], "count": number} for code, number in _counted(findings)
            ]
        items = []
        if checklists:
            from .checklist.show import as_json as as_items

            items = [item for one in checklists for item in as_items(*one)]
        print(json.dumps({**document, "checklist": items}, indent=2), file=out)
    elif arguments.format == "sarif":
        from ..templates.render import version
        from .sarif import as_sarif

        log = as_sarif(findings, result.unreadable, version(), report.Lines(result.texts))
        print(json.dumps(log, indent=2), file=out)
    else:
        summary = f"{report.plural(result.files, 'file')} read: {report.count(findings)}"
        lines = [summary if fixed is None else f"{summary}; {len(fixed.fixes)} fixed"]
        if checklists:
            from .checklist.show import as_text as as_list

            for one in checklists[:CHECKLIST_LIMIT]:
                lines += ["", *as_list(*one)]
        if len(checklists) > CHECKLIST_LIMIT:
            lines += ["", f"... and {len(checklists) - CHECKLIST_LIMIT} more checklists; --format json has them all"]
        lines += [""] if checklists and findings else []
        if arguments.format == "github":
            from .annotations import as_annotations

            lines += as_annotations(findings)
        elif arguments.statistics:
            lines += [f"{number:6}  {code}  {NAMES[code]}" for code, number in _counted(findings)]
        else:
            lines += report.as_text(findings, report.Lines(result.texts))
            lines += report.fixed_as_text(fixed.fixes if fixed is not None else [])
            lines += _hints(findings, hidden, fixed is not None)
        print("\n".join(lines), file=out)
    _tell_problems(arguments, result)
    if result.unreadable:
        return 2
    fails = any(f.severity.fails for f in findings) or any(
        verdict.status.value == "missing" for _, _, verdicts in checklists for verdict in verdicts
    )
    return int(fails and not arguments.exit_zero)


def _workflows(arguments: argparse.Namespace) -> tuple[str, ...]:
    return {None: (), "all": ("a", "b")}.get(arguments.checklist, (arguments.checklist,))


def _checklists(linted: Sequence[Linted], findings: Sequence[Finding]) -> list[tuple[str, Workflow, list[Verdict]]]:
    """Each program's checklists. Raises UserError when there is no program: a list of nothing is not a list done."""
    from .checklist import WORKFLOWS, ticked

    found = []
    for one in linted:
        own = {(f.code, f.at) for f in one.outcome.findings}
        here = [f for f in findings if (f.code, f.at) in own]
        for letter, verdicts in one.outcome.checklists.items():
            found.append((one.source.name, WORKFLOWS[letter], ticked(WORKFLOWS[letter], verdicts, here)))
    if not found and not any(one.outcome.problem for one in linted):
        raise UserError("--checklist: none of these files is a program that trains, saves or loads; name the script")
    return found


def _check(arguments: argparse.Namespace) -> None:
    """Raises UserError for options that do not go together."""
    if arguments.statistics and arguments.format not in ("text", "json"):
        raise UserError(f"--statistics is for text and json: leave it out, or --format {arguments.format}")
    if arguments.checklist is not None and (arguments.fix or arguments.diff):
        raise UserError("--checklist judges the files as they are: run it after --fix")
    if arguments.checklist is not None and arguments.format not in ("text", "json"):
        raise UserError(f"--checklist is for text and json: leave it out, or --format {arguments.format}")
    if arguments.unsafe_fixes and not (arguments.fix or arguments.diff):
        raise UserError("--unsafe-fixes says what --fix and --diff may do: add one of them")
    if arguments.diff and (arguments.format != "text" or arguments.statistics):
        raise UserError("--diff prints a diff and nothing else: leave --format and --statistics out")


def _result(linted: Sequence[Linted], outcomes: Sequence[Outcome]) -> Result:
    result = Result()
    for one, outcome in zip(linted, outcomes, strict=True):
        result.add(outcome, one.choice)
    return result


def _show_diff(arguments: argparse.Namespace, result: Result, fixed: Fixed, hidden: int) -> int:
    """Print what fixing would change; 1 when that is something."""
    sys.stdout.flush()
    for text in fixed.texts:
        sys.stdout.buffer.write(text.diff())
    sys.stdout.buffer.flush()
    would = f"{report.plural(len(fixed.fixes), 'finding')} would be fixed in {report.plural(len(fixed.texts), 'file')}"
    print("; ".join([would, *_hints([], hidden, True)]), file=sys.stderr)
    _tell_problems(arguments, result)
    return 2 if result.unreadable else int(bool(fixed.texts) and not arguments.exit_zero)


def _print_fixed_input(linted: Sequence[Linted], fixed: Fixed) -> None:
    """Print what standard input held, fixed, byte for byte."""
    changed = {text.source.name: text.encoded() for text in fixed.texts}
    for one in linted:
        if one.source.path is None:
            sys.stdout.buffer.write(changed.get(one.source.name, one.outcome.content or b""))
    sys.stdout.buffer.flush()


def _hints(findings: Sequence[Finding], hidden: int, fixing: bool) -> list[str]:
    """What fixes there are beyond those that were made."""
    if fixing:
        return [f"{hidden} more can be fixed with --unsafe-fixes: look at them by --diff first"] if hidden else []
    if not findings:
        return []
    from .fixes import FIXERS

    fixable = any(finding.code in FIXERS for finding in findings)
    return ["--diff --unsafe-fixes shows what of this, if anything, can be mended mechanically"] if fixable else []


def _tell_problems(arguments: argparse.Namespace, result: Result) -> None:
    for problem in result.unreadable:
        print(f"fsdp2 lint: {report.printable(problem)}", file=sys.stderr)
    for note in sorted(result.notes, key=lambda n: (n.at.file, n.at.line, n.text)):
        if arguments.verbose or note.fault:
            print(report.printable(f"{note.at}: not known: {note.text}"), file=sys.stderr)


def _linted(arguments: argparse.Namespace) -> Iterator[Linted]:
    """Each file, linted, with the choice of findings that holds for it."""
    choices: dict[str, Choice] = {}
    sources = []
    for source in find_sources(arguments.paths, arguments.stdin_filename):
        if source.given not in choices:
            choices[source.given] = Choice.of(arguments, nearest(Path(source.given)))
        if source.named or not choices[source.given].settings.excludes(source.name):
            sources.append(source)
    if not sources:
        (first, *_) = [c.settings for c in choices.values()]
        raise UserError(f"{first.where('exclude')} it leaves no file to lint; name a file, or exclude less")
    outcomes = lint(
        [(source, choices[source.given].torch) for source in sources],
        _workflows(arguments),
        cached=not arguments.no_cache,
    )
    for source, outcome in zip(sources, outcomes, strict=True):
        yield Linted(source, choices[source.given], outcome)


@record(frozen=True)
class Linted:
    """A file, the choice of findings that holds for it, and what linting it gave."""

    source: Source
    choice: Choice
    outcome: Outcome


@record(frozen=True)
class Choice:
    """Which findings the user wants to see: the command line, and where that says nothing, the settings."""

    codes: frozenset[str]
    mildest: Severity
    settings: Settings
    torch: str | None = None  # the release that the user says the scripts are for

    @classmethod
    def of(cls, arguments: argparse.Namespace, settings: Settings) -> Choice:
        """Raises UserError for codes and names that mean no rule, and when no rule is left."""
        select, ignore = ("--select", arguments.select), ("--ignore", arguments.ignore)
        chosen = frozenset(NAMES)
        if select[1] is not None:
            chosen = matching(select[0], split(select[1]))
        elif settings.select is not None:
            chosen = matching(settings.where("select"), settings.select)
        if ignore[1] is not None:
            chosen -= matching(ignore[0], split(ignore[1]))
        else:
            chosen -= matching(settings.where("ignore"), settings.ignore)
        if not chosen:
            raise UserError("--select and --ignore leave no rule to judge by: name at least one that is not ignored")
        for glob, codes in settings.per_file_ignores:
            matching(settings.where(f"per-file-ignores {glob!r}"), codes)  # a mistake shows, whatever the glob matches
        torch = None
        if arguments.torch is not None:
            torch = target.parse(arguments.torch, "--torch")
        elif settings.torch is not None:
            torch = target.parse(settings.torch, settings.where("torch"))
        return cls(chosen, Severity(arguments.min_severity or settings.min_severity or "info"), settings, torch)

    @functools.cache  # noqa: B019 - as many choices as paths on the command line
    def codes_for(self, file: str) -> frozenset[str]:
        """The rules that the file is judged by."""
        ignored = self.settings.ignored_in(file)
        return self.codes - matching(self.settings.where("per-file-ignores"), ignored) if ignored else self.codes

    def shows(self, finding: Finding) -> bool:
        """Whether the user wants to see it."""
        return finding.severity.rank >= self.mildest.rank and finding.code in self.codes_for(finding.at.file)


@dataclass
class Result:
    """What linting several files adds up to; a finding in a module that two programs import counts once."""

    files: int = 0
    findings: dict[tuple[str, Location], tuple[Finding, bool]] = field(default_factory=dict)  # and whether it shows
    comments: dict[Location, Suppression] = field(default_factory=dict)
    choices: dict[str, Choice] = field(default_factory=dict)  # by file, of those that were judged themselves
    texts: dict[str, str] = field(default_factory=dict)
    notes: set[Note] = field(default_factory=set)
    unreadable: list[str] = field(default_factory=list)

    def add(self, outcome: Outcome, choice: Choice) -> None:
        """Take in what linting one more file gave."""
        self.files += 1
        self.choices[outcome.name] = choice
        for finding in outcome.findings:
            shown = self.findings.setdefault((finding.code, finding.at), (finding, False))[1] or choice.shows(finding)
            self.findings[finding.code, finding.at] = (finding, shown)
        for comment in outcome.comments:
            self.comments.setdefault(comment.at, comment)
        self.notes.update(outcome.notes)
        if outcome.text is not None:
            self.texts[outcome.name] = outcome.text
        if outcome.problem is not None:
            self.unreadable.append(outcome.problem)

    def unsuppressed(self) -> list[Finding]:
        """The findings that no comment accepts, and the comments that accept nothing, in the order of file and line."""
        left = suppressions.apply([f for f, _ in self.findings.values()], list(self.comments.values()))
        found = [finding for finding in left if self.findings[finding.code, finding.at][1]]
        for comment in self.comments.values():
            choice = self.choices.get(comment.at.file)
            if choice is not None:  # whether a comment in a module is of use shows when the module itself is linted
                judged = choice.codes_for(comment.at.file) & READER_ALONE
                found += filter(choice.shows, suppressions.stale([comment], judged))
        return sorted(found, key=lambda f: (f.at.file, f.at.line, f.at.column, f.code))


def _counted(findings: Sequence[Finding]) -> list[tuple[str, int]]:
    """How many findings of each rule, the most frequent first."""
    return sorted(Counter(f.code for f in findings).items(), key=lambda pair: (-pair[1], pair[0]))
