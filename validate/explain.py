"""Show the page of a rule: what it finds, why that is bad, what to write instead, and how it shows when it runs.

Without an argument, list the rules. A rule is named by its code or its name, whatever the case. Next to its page lie
bad.py and good.py, a pair of programs that differ in the mistake alone and run on two CPU ranks.
"""

from __future__ import annotations

import argparse
import difflib
import json
import re
from dataclasses import dataclass
from pathlib import Path

from .errors import UserError

EXAMPLES = (
    "fsdp2 explain",
    "fsdp2 explain FS701",
    "fsdp2 explain optimizer-before-sharding",
    "fsdp2 explain --format json",
)

PAGES = Path(__file__).resolve().parents[1] / "references" / "rules"
_HEAD = re.compile(r"# (?P<name>\S+) \((?P<code>FS\d+)\)\n\n(?P<severity>\w+) · [^\n]*seen by: (?P<seen_by>[^\n]*)\n")


@dataclass(frozen=True)
class Page:
    """A rule's page: its text in Markdown, and what stands at its head."""

    code: str
    name: str
    severity: str
    seen_by: tuple[str, ...]
    summary: str  # the first sentence of "What it does", on one line
    text: str


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `explain`."""
    parser.add_argument("rule", nargs="?", metavar="CODE|NAME", help="default: list all rules")
    parser.add_argument("--format", choices=("text", "json"), default="text", help="of the list; default: text")


def run(arguments: argparse.Namespace) -> int:
    """Print a page, or the list; return the exit code."""
    pages = read_pages()
    if arguments.rule is not None:
        if arguments.format == "json":
            raise UserError("--format json is for the list of rules: leave the rule out, or the format")
        print(_named(arguments.rule, pages).text, end="")
    elif arguments.format == "json":
        rules = [
            {"code": p.code, "name": p.name, "severity": p.severity, "seen_by": list(p.seen_by), "summary": p.summary}
            for p in pages
        ]
        print(json.dumps({"version": 1, "rules": rules}, indent=2))
    else:
        width = max(len(p.name) for p in pages)
        print(f"{len(pages)} rules; `fsdp2 explain CODE` shows the page of one")
        for p in pages:
            print(f"{p.code}  {p.name:{width}}  {p.severity:5}  {p.summary}")
    return 0


def read_pages() -> list[Page]:
    """The pages of all rules, in the order of their codes."""
    return [read_page(path) for path in sorted(PAGES.glob("*/page.md"))]


def read_page(path: Path) -> Page:
    """The page at `path`, which has the form that all pages share."""
    text = path.read_text(encoding="utf-8")
    head = _HEAD.match(text)
    assert head is not None, path
    does = text.partition("## What it does\n\n")[2].partition("\n\n")[0]
    sentence, end, _ = " ".join(does.split()).partition(". ")
    return Page(
        code=head["code"],
        name=head["name"],
        severity=head["severity"],
        seen_by=tuple(head["seen_by"].split(", ")),
        summary=sentence + end.strip(),
        text=text,
    )


def _named(rule: str, pages: list[Page]) -> Page:
    """The page of the rule with this code or name. Raises UserError, with near matches, when there is none."""
    wanted = rule.strip().lower()
    for page in pages:
        if wanted in (page.code.lower(), page.name):
            return page
    near = [page for page in pages if wanted and (wanted in page.name or page.code.lower().startswith(wanted))]
    if not near:
        known = {spelling: page for page in pages for spelling in (page.code.lower(), page.name)}
        near = [known[match] for match in difflib.get_close_matches(wanted, known)]
    hint = "".join(f", {page.code} {page.name}" for page in near[:5])
    meant = f"did you mean{hint[1:]}?" if hint else "`fsdp2 explain` lists the rules"
    raise UserError(f"{rule}: there is no rule of that code or name; {meant}")
