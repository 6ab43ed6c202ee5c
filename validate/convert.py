"""Convert a checkpoint: DCP's, one .pt file, or safetensors, into another of these.

DST says which: a name that ends in .pt (or .pth, .bin, .ckpt) is a file for torch.load, one in .safetensors such a
file, any other a folder of DCP's; or with --shard-size a folder of safetensors files and their index. SRC is a
checkpoint's folder (of a folder of steps, the latest whole), a .pt or a .safetensors file.

Tensors are streamed, so memory does not grow with their size; nothing that is read is executed. What was written is
read back and compared by digest before it gets its name. It needs NumPy, and no torch.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from .checkpoint.pickles import shown
from .checkpoint.safetensors import SUFFIX
from .checkpoint.show import size
from .checkpoint.values import numpy
from .conversion import safetensors
from .conversion.archive import write_archive
from .conversion.cast import SHORT, TARGETS, is_floating
from .conversion.dcp import write_dcp
from .conversion.entries import Entry, Source, nested, open_source, tensors_in
from .conversion.names import Renaming, choose, moved, rename
from .conversion.output import Writing, check_space, published
from .conversion.progress import Progress
from .conversion.verify import Mismatch, verify
from .errors import UserError
from .quantities import parse_size
from .report import plural
from .signals import tidy_on_sigterm

EXAMPLES = (
    "fsdp2 convert checkpoints/step-100 model.pt --keys 'train.model.*' --rename 'train.model.*=*'",
    "fsdp2 convert checkpoints/ model.safetensors --keys 'train.model.*' --rename 'train.model.*=*' --dtype bf16",
    "fsdp2 convert checkpoints/step-100 hf/ --keys 'train.model.*' --rename 'train.model.*=*' --shard-size 5GB",
    "fsdp2 convert model.safetensors initial/ --rename '*=model.*'",
)
TORCH_SUFFIXES = (".pt", ".pth", ".bin")
_OVERHEAD = 2**11  # bytes that an entry takes besides its elements, at most, but for the text of its key


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `convert`."""
    parser.add_argument(
        "source", metavar="SRC", help="what to convert; a folder may be a URI where fsspec is installed"
    )
    parser.add_argument("destination", metavar="DST", help="what to write; it must not exist")
    parser.add_argument(
        "--keys",
        metavar="PATTERN",
        action="append",
        default=[],
        help="only keys of this pattern, as in 'model.*'; '!PATTERN' leaves them out; may be repeated",
    )
    parser.add_argument(
        "--rename",
        metavar="OLD=NEW",
        action="append",
        default=[],
        help="new names, as in 'train.model.*=*', where * is any text; may be repeated, each after the one before",
    )
    parser.add_argument(
        "--dtype", choices=(*TARGETS, *SHORT), help="convert floating-point tensors to this (default: as they are)"
    )
    parser.add_argument("--shard-size", metavar="SIZE", help="safetensors files of at most this, as in 5GB or 512MiB")
    parser.add_argument("--format", choices=("text", "json"), default="text", help="default: text")


def run(arguments: argparse.Namespace) -> int:
    """Convert, and return the exit code: 0 done, 1 what was written is not what was read (and is gone)."""
    started = time.monotonic()
    numpy()  # or a word that it is missing, before anything is written
    target = _target(arguments.destination)
    kind = _kind(target, arguments.shard_size)
    limit = None if arguments.shard_size is None else parse_size("--shard-size", arguments.shard_size)
    renamings = [Renaming(given) for given in arguments.rename]
    try:
        with tidy_on_sigterm(), published(target) as beside:
            source = open_source(arguments.source)
            if source.format == "DCP" and target.parent.resolve().is_relative_to(Path(source.where).resolve()):
                raise UserError(f"{target}: lies in the checkpoint that is read; expected a place outside of it")
            names = rename(choose(source, arguments.keys), renamings)
            if kind == source.format == "pt" and source.digits is not None:
                raise UserError(
                    f"{arguments.source}: {shown(source.digits)} has a number for a key, which would become text; "
                    "expected text for all keys, or a folder for DST: DCP makes text of them too"
                )
            dtype = SHORT.get(arguments.dtype, arguments.dtype)
            entries = [_entry(source, key, name, dtype) for key, name in names.items()]
            total = sum(tensor.bytes for entry in entries for tensor in tensors_in(entry.value))
            check_space(target.parent, total + _OVERHEAD * len(entries))
            writing = Writing(Progress("writing", total))
            try:
                files = _write(writing, beside, target, entries, kind, limit)
            finally:
                writing.progress.end()
            verify(writing, beside, entries, Progress("reading back", total))
            sizes = {file.name: (beside if beside.is_file() else beside / file.name).stat().st_size for file in files}
    except Mismatch as error:
        print(f"fsdp2 convert: {target}: what was written is not what was read, and was removed: {error}",
              file=sys.stderr)  # fmt: skip
        return 1
    seconds = time.monotonic() - started
    if arguments.format == "json":
        print(json.dumps(_document(arguments, source, kind, entries, writing, sizes, seconds), indent=2))
    else:
        tensors = sum(entry.is_tensor for entry in entries)
        objects = f" and {plural(len(entries) - tensors, 'object')}" if tensors < len(entries) else ""
        print(
            f"{shown(str(target))}: {plural(tensors, 'tensor')}{objects}, {size(total)} of elements in "
            f"{plural(len(files), 'file')}, from {shown(source.where)}; read back, and equal by digest"
        )
    return 0


def _target(destination: str) -> Path:
    """The path to write to."""
    if not destination or "://" in destination:
        what = "is a URI" if destination else "is no name"
        raise UserError(f"{destination or repr(destination)}: {what}; expected a path of a file or a folder to write")
    return Path(os.path.normpath(destination))


def _kind(target: Path, shard_size: str | None) -> str:
    """The format to write."""
    if shard_size is not None:
        if target.suffix in (*TORCH_SUFFIXES, SUFFIX):
            raise UserError(f"{target}: is the name of one file; expected a folder's, since --shard-size makes several")
        return "safetensors"
    if target.suffix == SUFFIX:
        return "safetensors"
    return "pt" if target.suffix in TORCH_SUFFIXES else "DCP"


def _entry(source: Source, key: str, name: str, dtype: str | None) -> Entry:
    """What becomes of a key: its new name, and the new dtype if that applies to it."""
    entry = source.entry(key)
    value = entry.value
    if dtype is not None and entry.is_tensor and is_floating(value.dtype):
        value = replace(value, dtype=dtype)
    return Entry(name, moved(entry.path, key, name), value)


def _write(
    writing: Writing, beside: Path, target: Path, entries: Sequence[Entry], kind: str, limit: int | None
) -> list[Path]:
    """Write all; the files that there will be."""
    if kind == "DCP":
        return write_dcp(writing, beside, target, entries)
    if kind == "pt":
        state = nested(entries)
        with writing.file(beside) as out:
            write_archive(out, state)
        return [target]
    safetensors.check(entries)
    if limit is not None:
        return safetensors.write_shards(writing, beside, target, entries, limit)
    safetensors.write_file(writing, beside, entries)
    return [target]


def _document(
    arguments: argparse.Namespace,
    source: Source,
    kind: str,
    entries: Sequence[Entry],
    writing: Writing,
    sizes: dict[str, int],
    seconds: float,
) -> dict[str, object]:
    return {
        "version": 1,
        "source": {"path": source.where, "format": source.format},
        "destination": {"path": arguments.destination, "format": kind},
        "tensors": [
            {
                "key": entry.key,
                "dtype": entry.value.dtype,
                "shape": list(entry.value.shape),
                "bytes": entry.value.bytes,
                "digest": writing.digests[entry.value.origin],
            }
            for entry in entries
            if entry.is_tensor
        ],
        "objects": [entry.key for entry in entries if not entry.is_tensor],
        "files": [{"file": file, "bytes": length} for file, length in sizes.items()],
        "seconds": round(seconds, 3),
    }
