"""Find what is wrong in training scripts that use FSDP2 or DCP, without running or importing them.

Reads files and folders, follows each program from its entry point through the project's own modules, and judges it by
the rule book. A finding can be accepted on its line: `# fsdp2: ignore[FS401] why`. What the reader cannot know it
does not judge; --verbose tells what that was. Needs neither torch nor a GPU.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path

from . import report, suppressions
from .errors import UserError
from .events import Location
from .findings import Finding, Severity
from .reader import mentions_api, read
from .rules import RULES, judge
from .rules.base import READER, Rule
from .sources import Source, decode, find_sources
from .trace import Note

EXAMPLES = (
    "fsdp2 lint train.py",
    "fsdp2 lint src/ --ignore FS202 --format json",
    "fsdp2 lint - --stdin-filename train.py < train.py",
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `lint`."""
    parser.add_argument("paths", nargs="+", metavar="PATH", help="files or folders; - reads standard input")
    parser.add_argument(
        "--stdin-filename",
        metavar="FILE",
        help="the name that standard input goes by; imports are looked up from there",
    )
    parser.add_argument("--format", choices=("text", "json"), default="text", help="default: text")
    parser.add_argument(
        "--select", metavar="CODES", help="judge by these rules only: codes or their beginnings, FS4,FS601"
    )
    parser.add_argument("--ignore", metavar="CODES", help="leave these rules out")
    parser.add_argument(
        "--min-severity",
        choices=[s.value for s in Severity],
        default="info",
        help="leave out what is milder (default: info)",
    )
    parser.add_argument("--exit-zero", action="store_true", help="exit with 0 whatever is found")
    parser.add_argument("--verbose", action="store_true", help="also tell what the reader could not know")


def run(arguments: argparse.Namespace) -> int:
    """Lint, print, and return the exit code."""
    rules = choose(arguments.select, arguments.ignore)
    result = Result()
    for source in find_sources(arguments.paths, arguments.stdin_filename):
        _lint(source, rules, result)
    judged = frozenset(rule.code for rule in rules if READER in rule.seen_by)
    worst = Severity(arguments.min_severity).rank
    findings = [f for f in result.unsuppressed(judged) if f.severity.rank >= worst]
    if arguments.format == "json":
        found = [report.as_json(f) for f in findings]
        print(json.dumps({"version": 1, "files": result.files, "findings": found, "checklist": []}, indent=2))
    else:
        print(f"{report.plural(result.files, 'file')} read: {report.count(findings)}")
        print("\n".join(report.as_text(findings)), end="\n" if findings else "")
    for problem in result.unreadable:
        print(f"fsdp2 lint: {problem}", file=sys.stderr)
    if arguments.verbose:
        for note in sorted(result.notes, key=lambda n: (n.at.file, n.at.line, n.text)):
            print(f"{note.at}: not known: {note.text}", file=sys.stderr)
    if result.unreadable:
        return 2
    return int(any(f.severity.fails for f in findings) and not arguments.exit_zero)


@dataclass
class Result:
    """What linting several files adds up to; a finding in a module that two programs import counts once."""

    files: int = 0
    findings: dict[tuple[str, Location], Finding] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)  # by file name, of the files that were judged
    notes: set[Note] = field(default_factory=set)
    unreadable: list[str] = field(default_factory=list)

    def unsuppressed(self, judged: frozenset[str]) -> list[Finding]:
        """The findings that no comment accepts, and the comments that accept nothing, in the order of file and line."""
        imported = {f.at.file for f in self.findings.values()} - set(self.texts)
        comments = [s for file, text in self.texts.items() for s in suppressions.find(file, text)]
        elsewhere = [s for file in imported for s in suppressions.find(file, decode(file, Path(file).read_bytes()))]
        accepted = suppressions.apply(self.findings.values(), comments + elsewhere)
        stale = suppressions.stale(comments, judged)
        return sorted(accepted + stale, key=lambda f: (f.at.file, f.at.line, f.at.column, f.code))


def choose(select: str | None, ignore: str | None) -> tuple[Rule, ...]:
    """The rules that the options name. Raises UserError for a code that begins no rule's code."""
    every = {rule.code for rule in RULES}
    chosen = (every if select is None else _matching("--select", select)) - _matching("--ignore", ignore or "")
    if not chosen:
        raise UserError("--select and --ignore leave no rule to judge by: name at least one that is not ignored")
    return tuple(rule for rule in RULES if rule.code in chosen)


def _matching(option: str, codes: str) -> set[str]:
    matching: set[str] = set()
    for prefix in filter(None, (code.strip().upper() for code in codes.split(","))):
        named = {rule.code for rule in RULES if rule.code.startswith(prefix)}
        if not named:
            raise UserError(f"{option} {prefix}: no rule has a code that begins so; `fsdp2 explain` lists the rules")
        matching |= named
    return matching


def _lint(source: Source, rules: tuple[Rule, ...], result: Result) -> None:
    result.files += 1
    try:
        content = source.content()
        if not source.named and not mentions_api(content):
            return  # met in a folder and of no interest; a file that was named is read whatever it holds
        text = decode(source.name, content)
        reading = read(Path(source.name), text=text)
    except UserError as error:
        result.unreadable.append(str(error))
        return
    result.texts[source.name] = text
    for trace in reading.traces:
        result.notes |= set(trace.notes)
    for finding in judge(reading.traces, rules):
        result.findings.setdefault((finding.code, finding.at), finding)
