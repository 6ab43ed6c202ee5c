"""Look into a checkpoint: whether it is whole, what it holds and where, and how it differs from another.

Reads DCP's folders of .distcp files and safetensors, as fsdp2 generate, torchtitan, Accelerate, Lightning and plain DCP
save them, and folders of steps, of which the latest whole one is shown. Never executes what it reads, and needs neither
torch nor a process group (NumPy for --digest and --against). Values are streamed; so a large checkpoint needs no more
memory than a small one, but for its metadata.
"""

from __future__ import annotations

import argparse
import json
import sys

from .checkpoint import show
from .checkpoint.against import Difference, difference
from .checkpoint.digest import digest
from .checkpoint.folders import open_folder
from .checkpoint.layouts import Checkpoint, Parts, Steps, survey
from .checkpoint.patterns import expected, matching
from .errors import UserError

EXAMPLES = (
    "fsdp2 inspect checkpoints/",
    "fsdp2 inspect checkpoints/step-100 --keys '*embed*'",
    "fsdp2 inspect checkpoints/step-100 --digest --format json",
    "fsdp2 inspect on-4-ranks/step-100 --against on-8-ranks/step-100",
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `inspect`."""
    parser.add_argument(
        "folder", metavar="DIR", help="a checkpoint, or a folder of them; a URI where fsspec is installed"
    )
    parser.add_argument(
        "--keys", metavar="PATTERN", help="only keys of this pattern, as in '*.weight', with all their chunks"
    )
    parser.add_argument(
        "--against", metavar="DIR", help="compare keys, shapes, dtypes and values with another checkpoint"
    )
    parser.add_argument(
        "--digest", action="store_true", help="a hash of each tensor's content, the same however it was sharded"
    )
    parser.add_argument("--format", choices=("text", "json"), default="text", help="default: text")
    parser.add_argument("--verbose", action="store_true", help="show every key, chunk, file and step")


def run(arguments: argparse.Namespace) -> int:
    """Inspect, print, and return the exit code: 0 whole (and equal), 1 not whole or different."""
    found = survey(open_folder(arguments.folder))
    checkpoints = found.checkpoints
    chosen = [_matching(checkpoint, arguments.keys) for checkpoint in checkpoints]
    if arguments.keys is not None and not any(chosen):
        raise UserError(_nothing_matches(arguments, checkpoints))
    digests = [_digests(c, keys) if arguments.digest else None for c, keys in zip(checkpoints, chosen, strict=True)]
    compared = None if arguments.against is None else _compare(arguments, found)
    every = arguments.verbose
    if arguments.format == "json":
        values = every or arguments.keys is not None
        document = {
            "version": 1,
            "path": arguments.folder,
            "kind": show.kind(found),
            "whole": found.whole,
            "latest": found.latest.name if isinstance(found, Steps) and found.latest else None,
            "steps": show.steps_json(found.steps) if isinstance(found, Steps) else [],
            "checkpoints": [
                show.as_json(checkpoint, keys, hashes, values=values)
                for checkpoint, keys, hashes in zip(checkpoints, chosen, digests, strict=True)
            ],
            "against": None if compared is None else show.differences_json(arguments.against, *compared),
        }
        print(json.dumps(document, indent=2))
    else:
        tables = compared is None or every or arguments.keys is not None or arguments.digest
        lines = [] if not isinstance(found, Steps) else [*show.steps_text(found, every=every), ""]
        for checkpoint, keys, hashes in zip(checkpoints, chosen, digests, strict=True):
            lines += show.text(checkpoint, keys, hashes or {}, every=every, tables=tables)
        if compared is not None:
            lines += show.differences_text(arguments.against, *compared, every=every)
        print("\n".join(lines))
    unread = any(
        hashes is not None and len(hashes) < sum(key in contents.tensors for key in keys or contents.tensors)
        for contents, keys, hashes in zip((c.contents for c in checkpoints), chosen, digests, strict=True)
        if contents is not None
    )
    return int(not found.whole or unread or bool(compared and compared[0]))


def _matching(checkpoint: Checkpoint, pattern: str | None) -> list[str] | None:
    """The keys that match, None for all."""
    if pattern is None:
        return None
    contents = checkpoint.contents
    keys = sorted((*contents.tensors, *contents.objects)) if contents else []
    return matching(keys, pattern)


def _nothing_matches(arguments: argparse.Namespace, checkpoints: list[Checkpoint]) -> str:
    keys = [key for c in checkpoints if c.contents for key in (*c.contents.tensors, *c.contents.objects)]
    return f"--keys {arguments.keys}: matches none; {expected(keys, arguments.keys, 'the checkpoint')}"


def _digests(checkpoint: Checkpoint, keys: list[str] | None) -> dict[str, str]:
    """By key, the digests of the tensors that can be read; of the others, the reason goes to stderr."""
    contents = checkpoint.contents
    digests: dict[str, str] = {}
    for key in (sorted(contents.tensors) if keys is None else keys) if contents else ():
        if contents and key in contents.tensors:
            try:
                digests[key] = digest(checkpoint.folder, contents.tensors[key])
            except UserError as error:
                print(f"fsdp2 inspect: no digest: {error}", file=sys.stderr)
    return digests


def _compare(arguments: argparse.Namespace, found: Checkpoint | Parts | Steps) -> tuple[list[Difference], int]:
    """The differences, and how many keys were looked at."""
    other = survey(open_folder(arguments.against))
    pairs = _paired(arguments, found, other)
    differences: list[Difference] = []
    looked_at = 0
    for mine, theirs in pairs:
        if mine.contents is None or theirs.contents is None:
            bare = mine if mine.contents is None else theirs
            raise UserError(f"{bare.folder.where}: {bare.problems[0].message}; so there is nothing to compare")
        keys = None
        if arguments.keys is not None:
            keys = sorted({*(_matching(mine, arguments.keys) or ()), *(_matching(theirs, arguments.keys) or ())})
        differences += difference((mine.folder, mine.contents), (theirs.folder, theirs.contents), keys)
        both = {*mine.contents.tensors, *mine.contents.objects, *theirs.contents.tensors, *theirs.contents.objects}
        looked_at += len(both if keys is None else keys)
    return differences, looked_at


def _paired(
    arguments: argparse.Namespace, found: Checkpoint | Parts | Steps, other: Checkpoint | Parts | Steps
) -> list[tuple[Checkpoint, Checkpoint]]:
    """Which checkpoint is compared with which: the two, or the parts of the same name."""
    mine, theirs = found.checkpoints, other.checkpoints
    if not mine or not theirs:
        raise UserError(
            f"{arguments.folder if not mine else arguments.against}: no step in it is whole; name one to compare"
        )
    if len(mine) == len(theirs) == 1:
        return [(mine[0], theirs[0])]
    names, others = [[checkpoint.folder.name for checkpoint in side] for side in (mine, theirs)]
    if names != others:
        raise UserError(
            f"--against {arguments.against}: has {', '.join(others)}; expected {', '.join(names)} as in DIR"
        )
    return list(zip(mine, theirs, strict=True))
