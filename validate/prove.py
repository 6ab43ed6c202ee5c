"""Run a training script on several ranks and prove that it keeps its promises.

The script is not modified. It runs under a probe, on CPU ranks or on the GPUs that are there. Proofs:

  trace    no rule of the contract is broken in a real run
  parity   one rank computes what several do: losses and gradient norms are equal up to rounding
  resume   killed one step after a checkpoint and started again, it computes what a straight run computes, bit for bit
  reshard  so killed and started again on other ranks, it has the state that was saved, bit for bit, and goes on with
           the same losses and gradient norms up to rounding
  crash    killed in any phase of a save and started again, it loses at most the steps since the last whole checkpoint;
           all phases where the proof is named, the likeliest otherwise; asked to end by a signal that it handles, and
           ended with 0, it loses none
  async    what an asynchronous save writes is the state at the call, however far the loop has gone on by then
  export   what it exports, and a checkpoint that is converted, holds the weights that the ranks had in memory

Of `all`, what says nothing about a script is skipped, with the reason; a proof that is named and cannot be given is an
error (exit code 2).

A finding can be accepted on its line, as for lint: `# fsdp2: ignore[FS401] why`.

A generated script carries how to drive it; on CPUs, two of its runs go side by side. For any other, --checkpoint-arg
names the flag that sets its checkpoint directory; without it, each run gets a copy of the working directory.
--steps-arg names the flag that sets its length, which --stop-after then sets; without it, the probe ends each run. What
follows -- is passed to the script.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import json
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path
from typing import Any

from . import header, report
from .errors import UserError
from .files import chosen_file, write_chosen
from .launch import launcher
from .proofs import PROOFS
from .proofs.base import Verdict
from .proofs.bench import Bench, Subject
from .proofs.lanes import give
from .proofs.observed import observed
from .signals import tidy_on_sigterm
from .sources import Source, decode

EXAMPLES = (
    "fsdp2 validate train.py --nproc 2 --prove trace,resume -- --data README.md",
    "fsdp2 validate train.py --nproc 4 --prove reshard --to-mesh dp_shard=2,tp=2 -- --data README.md",
    "fsdp2 validate train.py --report train.html -- --data README.md",
    "fsdp2 validate my_train.py --checkpoint-arg --ckpt-dir --stop-after 20 --format json -- --config small.yaml",
)

TORCH_NEEDED = (2, 6)


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `validate`; those after `--` are the script's own."""
    parser.add_argument("script", metavar="SCRIPT")
    parser.add_argument("--nproc", type=int, default=2, metavar="N", help="ranks to run on (default: 2)")
    parser.add_argument(
        "--prove", default="all", metavar="NAMES", help="proofs, by comma, as trace,resume (default: all)"
    )
    parser.add_argument(
        "--to-nproc", type=int, metavar="N",
        help="reshard: to so many ranks (default: half as many; from two to one and to four)",
    )  # fmt: skip
    parser.add_argument(
        "--to-mesh", metavar="SPEC", help="reshard: to this mesh, of a generated script: dp_shard=2,tp=2"
    )
    parser.add_argument(
        "--launcher", choices=("warm", "torchrun"), default="warm",
        help="warm forks ranks from a process that has torch imported; torchrun is the plain command (default: warm)",
    )  # fmt: skip
    parser.add_argument("--timeout", type=float, default=120, metavar="S", help="seconds for each run (default: 120)")
    parser.add_argument("--checkpoint-arg", metavar="FLAG", help="the script's flag that sets its checkpoint directory")
    parser.add_argument(
        "--steps-arg", metavar="FLAG", help="the script's flag that sets how many optimizer steps it does"
    )
    parser.add_argument(
        "--stop-after", type=int, metavar="N",
        help="end each run after N optimizer steps: by --steps-arg where that is known, as the script itself ends",
    )  # fmt: skip
    parser.add_argument("--format", choices=("text", "json"), default="text", help="default: text")
    parser.add_argument(
        "--report", metavar="FILE.html",
        help="write a page for people too: verdicts, losses, saves in time, who owns what, findings",
    )  # fmt: skip


def parse(parser: argparse.ArgumentParser, argv: list[str]) -> argparse.Namespace:
    """Parse what stands before `--`, and keep what follows for the script.

    argparse takes the value of `--checkpoint-arg --ckpt-dir` for another option, so the two are joined first; so are
    those of `--steps-arg`.
    """
    own, rest = (argv[: argv.index("--")], argv[argv.index("--") + 1 :]) if "--" in argv else (argv, [])
    joined: list[str] = []
    for word in own:
        if joined and joined[-1] in ("--checkpoint-arg", "--steps-arg"):
            joined[-1] += f"={word}"
        else:
            joined.append(word)
    return parser.parse_args(joined, argparse.Namespace(script_args=tuple(rest)))


def run(arguments: argparse.Namespace) -> int:
    """Prove, print, and return the exit code."""
    started = time.monotonic()
    torch_version = _torch_version()
    names = _choose(arguments.prove)
    target = None if arguments.report is None else chosen_file("--report", arguments.report, (".html", ".htm"))
    with tidy_on_sigterm(), tempfile.TemporaryDirectory(prefix="fsdp2-") as scratch:
        bench = Bench(
            _subject(arguments),
            launcher(arguments.launcher),
            Path(scratch).resolve(),
            thorough=arguments.prove != "all",
        )
        timed = give([proof for proof in PROOFS if proof.name in names], bench)
        seen = None if bench.seen is None else observed(bench.seen)
    verdicts = [verdict for verdict, _ in timed]
    document = {
        "version": 1,
        "script": arguments.script,
        "torch": torch_version,
        "nproc": arguments.nproc,
        "launcher": arguments.launcher,
        "seconds": round(time.monotonic() - started, 3),
        "proofs": [_as_json(verdict, seconds) for verdict, seconds in timed],
        "run": seen,
    }
    if arguments.format == "json":
        print(json.dumps(document, indent=2))
    else:
        print("\n".join(_as_text(document, verdicts)))
    if target is not None:
        from .page.render import render  # needs jinja2, which nothing else of this verb does

        write_chosen("--report", target, render(document).encode())
    skipped = [v for v in verdicts if v.status == "skip"]
    impossible = [v for v in skipped if v.applies or arguments.prove != "all"]
    if arguments.format == "json":  # text has told already
        for reason in dict.fromkeys(v.reason for v in (skipped if len(skipped) == len(verdicts) else impossible)):
            print(f"fsdp2 validate: {reason}", file=sys.stderr)
    if any(v.status == "fail" for v in verdicts):
        return 1
    return 2 if impossible or len(skipped) == len(verdicts) else 0


def _subject(arguments: argparse.Namespace) -> Subject:
    script = Path(arguments.script)
    if not script.is_file():
        raise UserError(f"{script}: no such file; expected a training script")
    text = decode(str(script), Source(str(script), script, named=True).content())
    try:
        compile(text, str(script), "exec", flags=ast.PyCF_ONLY_AST)
    except SyntaxError as error:
        raise UserError(f"{script}:{error.lineno}: does not parse: {error.msg}; expected a Python script") from error
    for option, value in (("--nproc", arguments.nproc), ("--timeout", arguments.timeout)):
        if value <= 0:
            raise UserError(f"{option} {value}: expected a number above 0")
    for option, value in (("--stop-after", arguments.stop_after), ("--to-nproc", arguments.to_nproc)):
        if value is not None and value <= 0:
            raise UserError(f"{option} {value}: expected a number above 0")
    carried = header.parse(text)
    steps_arg = arguments.steps_arg or (carried.steps_arg if carried else None)
    if arguments.steps_arg and arguments.stop_after is None:
        raise UserError(f"--steps-arg {arguments.steps_arg}: expected --stop-after N with it, which it is given")
    length = (steps_arg, str(arguments.stop_after)) if steps_arg and arguments.stop_after else ()
    return Subject(
        script=script.resolve(),
        args=(*(carried.proof_args if carried else ()), *arguments.script_args, *length),  # what comes last wins
        nproc=arguments.nproc,
        cwd=Path.cwd(),
        checkpoint_arg=arguments.checkpoint_arg or (carried.checkpoint_arg if carried else None),
        stop_after=None if length else arguments.stop_after,
        timeout=arguments.timeout,
        header=carried,
        to_nproc=arguments.to_nproc,
        to_mesh=arguments.to_mesh,
    )


def _choose(names: str) -> set[str]:
    known = [proof.name for proof in PROOFS]
    chosen = {name.strip() for name in names.split(",") if name.strip()}
    if chosen == {"all"}:
        return set(known)
    if unknown := sorted(chosen - set(known)):
        raise UserError(f"--prove {unknown[0]}: no such proof; expected all or some of {', '.join(known)}")
    if not chosen:
        raise UserError(f"--prove names no proof; expected all or some of {', '.join(known)}")
    return chosen


def _torch_version() -> str:
    """The version of torch in this environment, found without importing it. Raises UserError when none will do."""
    needed = ".".join(map(str, TORCH_NEEDED))
    try:
        found = metadata.version("torch")
    except metadata.PackageNotFoundError as error:
        raise UserError(f"torch is not installed in this environment; expected torch {needed} or newer") from error
    if tuple(int(part) for part in found.split(".")[:2]) < TORCH_NEEDED:
        raise UserError(f"torch {found} is too old; expected {needed} or newer")
    if found.endswith("+cpu") and tuple(int(part) for part in found.split(".")[:2]) < (2, 7):
        raise UserError(f"torch {found} cannot run FSDP2 on CPUs; expected 2.7 or newer, or a build for your GPU")
    if importlib.util.find_spec("numpy") is None:
        raise UserError("numpy is not installed in this environment; DCP needs it where there are several ranks")
    return found


def _as_json(verdict: Verdict, seconds: float) -> dict[str, Any]:
    return {
        "name": verdict.name,
        "claim": next(proof.claim for proof in PROOFS if proof.name == verdict.name),
        "status": verdict.status,
        "reason": verdict.reason,
        "seconds": seconds,
        "figures": verdict.figures,
        "findings": [report.as_json(f) for f in verdict.findings],
    }


def _as_text(document: dict[str, Any], verdicts: list[Verdict]) -> list[str]:
    passed = sum(v.status == "pass" for v in verdicts)
    lines = [
        f"{document['script']}: {passed} of {report.plural(len(verdicts), 'proof')} passed "
        f"({report.plural(document['nproc'], 'rank')}, torch {document['torch']}, {document['seconds']:.1f} s)"
    ]
    told: dict[str, str] = {}
    for verdict in verdicts:
        reason = f"as {told[verdict.reason]}" if verdict.reason in told else verdict.reason
        told.setdefault(verdict.reason, verdict.name)
        lines.append(f"  {verdict.name:<8} {verdict.status.upper():<5} {reason}")
        lines += [f"    {line}" for line in report.as_text(verdict.findings)]
        for rank, stack in verdict.figures.get("stacks", {}).items():
            lines += [f"    rank {rank} at the deadline:", *(f"      {line}" for line in stack.rstrip().splitlines())]
    return lines
