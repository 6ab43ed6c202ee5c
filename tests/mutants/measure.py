"""How many mutants `lint` and `validate` kill, and how many scripts that are right they blame: `make measure`.

Each program is linted; then the proofs are tried, those of few runs first, on CPU ranks by the warm launcher, until one
fails or, with --all, every one. A script that does not come to its end by itself is told as such: `validate` then ends
with code 2 and the script's own error. What came of a program is kept in `.cache/mutants`, by a digest of the program
and of all code that judges it, so that a run that was ended goes on where it was.

    python -m tests.mutants.measure --only 'A-*' --all
"""

from __future__ import annotations

import argparse
import dataclasses
import fnmatch
import functools
import hashlib
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from pytorch_fsdp2_dcp.validate.errors import UserError
from pytorch_fsdp2_dcp.validate.files import replace_file
from pytorch_fsdp2_dcp.validate.launch import launcher
from pytorch_fsdp2_dcp.validate.linter import lint_one
from pytorch_fsdp2_dcp.validate.proofs import PROOFS
from pytorch_fsdp2_dcp.validate.proofs.bench import Bench, Subject
from pytorch_fsdp2_dcp.validate.sources import Source

from .programs import CLASSES, ROOT, Program, mutants, right

KILLED = 0.95  # of the mutants that are not equivalent; `make measure` asks for it, and for no false alarm
ORDER = ("trace", "resume", "parity", "export", "async", "reshard", "crash")  # from one run to a dozen
NUMERICS = ("trace", "parity", "resume", *ORDER[3:])  # for class A, whose mistakes parity is there to find
CACHE = ROOT / ".cache" / "mutants"


@dataclass(frozen=True)
class Verdict:
    """What one observer says: `lint`, a proof, or `end` of a script that does not come to it."""

    by: str
    fails: bool
    reason: str
    seconds: float = 0.0


def judged(program: Program, *, every: bool = False, only: Sequence[str] = ORDER) -> Iterator[Verdict]:
    """The verdicts on a program in turn: up to the first that fails, or on `every` observer that has something to say.

    `only` names the proofs that are tried.
    """
    with tempfile.TemporaryDirectory(prefix="fsdp2-mutant-") as folder:
        subject = program.write(Path(folder))
        found = _linted(subject)
        yield found
        if found.fails and not every:
            return
        (scratch := Path(folder, "runs")).mkdir()
        bench = Bench(subject, launcher("warm"), scratch)
        proofs = {proof.name: proof for proof in PROOFS}
        for name in NUMERICS if program.group == "A" else ORDER:
            if name not in only:
                continue
            bench.thorough = name == "crash" and program.group != "right"  # as `validate --prove crash` tries it
            started = time.monotonic()
            try:
                verdict = proofs[name].prove(bench)
                findings = sorted({finding.code for finding in verdict.findings})
                fails, reason = verdict.status == "fail" or bool(findings), verdict.reason  # of any severity, as lint's
                if findings:
                    reason = f"{', '.join(findings)}; {reason}"
            except UserError as error:
                fails, reason = False, f"not tried: {error}"
            yield Verdict(name, fails, reason, round(time.monotonic() - started, 1))
            if fails and not every:
                return
            if not _completed(bench):
                if not fails:
                    yield Verdict("end", True, reason)
                return


def _completed(bench: Bench) -> bool:
    try:
        return bench.straight.completed
    except UserError:  # it is no distributed program, or needs what is not here
        return False


def _linted(subject: Subject) -> Verdict:
    script = subject.script
    outcome = lint_one(Source(str(script), script, named=True), script.read_bytes())
    if outcome.problem:
        return Verdict("lint", False, outcome.problem)
    codes = sorted({finding.code for finding in outcome.findings})
    return Verdict("lint", bool(codes), ", ".join(codes))


def remembered(program: Program, *, every: bool) -> list[Verdict]:
    """The verdicts, from the cache where they are there."""
    said = [code_digest(), torch.__version__, *map(str, dataclasses.astuple(program))]
    path = CACHE / f"{hashlib.sha256(chr(0).join(said).encode()).hexdigest()[:20]}.json"
    if path.exists():
        kept = json.loads(path.read_text())
        if kept["every"] or not every:
            return [Verdict(**verdict) for verdict in kept["verdicts"]]
    verdicts = list(judged(program, every=every))
    CACHE.mkdir(parents=True, exist_ok=True)
    kept = {"name": program.name, "every": every, "verdicts": [dataclasses.asdict(v) for v in verdicts]}
    replace_file(path, json.dumps(kept, indent=1).encode(), 0o644)
    return verdicts


@functools.cache
def code_digest() -> str:
    """Of all that writes, drives and judges a program."""
    files = [p for part in ("validate", "templates", "recipes") for p in (ROOT / part).rglob("*") if p.is_file()]
    digest = hashlib.sha256()
    for path in sorted([*files, Path(__file__).with_name("programs.py")]):
        if path.suffix in (".py", ".jinja", ".json"):
            digest.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def table(results: dict[Program, list[Verdict]]) -> list[str]:
    """Mutants by class and by the first that kills them, or by each that does; equivalent ones are not counted."""
    lines = [f"{'':17}  mutants  lint  trace  proofs  own end  any"]
    counted = {program: verdicts for program, verdicts in results.items() if not program.equivalent}
    for letter, name in (*CLASSES.items(), ("", "all")):
        chosen = [v for program, v in counted.items() if program.group == letter or not letter]
        by = [{verdict.by for verdict in verdicts if verdict.fails} for verdicts in chosen]
        proofs = sum(bool(killers - {"lint", "trace", "end"}) for killers in by)
        lint, trace, end = (sum(one in killers for killers in by) for one in ("lint", "trace", "end"))
        lines.append(
            f"{letter:1} {name:15}  {len(chosen):7}  {lint:4}  {trace:5}  {proofs:6}  {end:7}  {sum(map(bool, by)):3}"
        )
    return lines


def main() -> int:
    """Judge, print the table; 1 where the figures are below what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", metavar="NAME", help="programs of this name; * stands for anything")
    parser.add_argument("--all", action="store_true", help="do not stop at the first observer that finds the mistake")
    arguments = parser.parse_args()
    programs = [
        program
        for program in (*mutants(), *right())
        if not arguments.only or any(fnmatch.fnmatchcase(program.name, name) for name in arguments.only)
    ]
    results: dict[Program, list[Verdict]] = {}
    for program in programs:
        results[program] = verdicts = remembered(program, every=arguments.all or program.group == "right")
        said = [v for v in verdicts if v.fails] or verdicts[-1:]
        print(f"{program.name}: " + "; ".join(f"{v.by}: {v.reason}" for v in said), file=sys.stderr, flush=True)
    planted = {program: verdicts for program, verdicts in results.items() if program.group != "right"}
    print("\n".join(table(planted)))
    alive = {program for program, verdicts in results.items() if not any(v.fails for v in verdicts)}
    for program in planted:
        if (program in alive) is not bool(program.equivalent):
            print(f"{'survives' if program in alive else 'equivalent, and killed'}: {program.name} ({program.bug})")
    alarms = [program for program in results if program.group == "right" and program not in alive]
    for program in alarms:
        print(f"false alarm: {program.name}: {next(v.reason for v in results[program] if v.fails)}")
    print(f"{len(results) - len(planted)} scripts that are right, {len(alarms)} of them blamed")
    real = [program for program in planted if not program.equivalent]
    enough = sum(program not in alive for program in real) >= KILLED * len(real)
    wrong = bool(alarms) or any(program.equivalent and program not in alive for program in planted)
    return int(wrong or not enough)


if __name__ == "__main__":
    sys.exit(main())
