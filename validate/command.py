"""The command line: finds the verb, parses its arguments, turns a `UserError` into one line and exit code 2."""

from __future__ import annotations

import argparse
import importlib
import sys

from .errors import UserError

VERBS = {  # verb: the module that defines it, and what it is for; a module is imported only when its verb is used
    "generate": ("..templates.generate", "write a DCP-enabled FSDP2 training script"),
    "lint": (".lint", "find what is wrong in training scripts, without running them"),
    "validate": (".prove", "run a training script and prove that it keeps its promises"),
    "explain": (".explain", "show the page of a rule, or list the rules"),
    "inspect": (".inspect", "look into a checkpoint: whole or not, what it holds, how it differs from another"),
    "convert": (".convert", "write a checkpoint in another format: DCP, one .pt file, safetensors"),
    "plan": (".plan", "memory of a rank, checkpoint size, how often to save, and what fits, before a run"),
    "skill": (".skill", "copy this skill to where a coding agent looks for skills"),
}


def main(argv: list[str]) -> int:
    """Run `fsdp2 VERB ...` and return its exit code."""
    if argv and argv[0] in VERBS:
        return _run(argv[0], argv[1:])
    parser = argparse.ArgumentParser(
        prog="fsdp2", description="FSDP2 training scripts and their distributed checkpoints."
    )
    verbs = parser.add_subparsers(metavar="VERB", required=True)
    for verb, (_, summary) in VERBS.items():
        verbs.add_parser(verb, help=summary)
    parser.epilog = (
        "`fsdp2 VERB --help` describes a verb. Exit codes: 0 holds or done, 1 found or failed, 2 could not run."
    )
    parser.parse_args(argv)  # only --help or a mistake gets here; both leave by SystemExit
    raise AssertionError(argv)


def _run(verb: str, argv: list[str]) -> int:
    module = importlib.import_module(VERBS[verb][0], __package__)
    parser = argparse.ArgumentParser(
        prog=f"fsdp2 {verb}",
        description=module.__doc__,
        epilog="examples:\n" + "\n".join(f"  {line}" for line in module.EXAMPLES),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    module.configure(parser)
    parse = getattr(
        module, "parse", argparse.ArgumentParser.parse_args
    )  # `validate` keeps what follows `--` for the script
    arguments = parse(parser, argv)
    try:
        return int(module.run(arguments))
    except UserError as error:
        from .report import printable  # which takes longer to import than most of what else is needed here

        print(f"fsdp2 {verb}: {printable(str(error))}", file=sys.stderr)
        return 2
