"""Writes safetensors: one file, or shards with the index that Hugging Face's tools read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from ..checkpoint.pickles import shown
from ..checkpoint.safetensors import DTYPES, HEADER_LIMIT, SUFFIX
from ..errors import UserError
from .entries import Elements, Entry
from .output import Writing

ALIGNMENT = 8  # bytes of the table
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_RESERVED = "__metadata__"


def check(entries: Sequence[Entry]) -> None:
    """Raise UserError for what the format cannot hold."""
    for entry in entries:
        if not entry.is_tensor:
            raise UserError(
                f"{shown(entry.key)}: is no tensor, and safetensors holds nothing else; choose by --keys, "
                f"such as --keys 'model.*', or leave it out by --keys '!{shown(entry.key)}'"
            )
        if entry.value.dtype not in _NAMES:
            raise UserError(f"{shown(entry.key)}: is {entry.value.dtype}, which safetensors has no name for")
        if entry.key == _RESERVED:
            raise UserError(f"{_RESERVED}: is no name for a tensor in safetensors; give it another by --rename")


def write_file(writing: Writing, path: Path, entries: Sequence[Entry]) -> None:
    """Write one file. The tensors of the largest items come first, so that each begins at a multiple of its item."""
    ordered = sorted(entries, key=lambda entry: (-entry.value.item_size, entry.key))
    table: dict[str, object] = {_RESERVED: {"format": "pt"}}  # transformers asks for it
    end = 0
    for entry in ordered:
        tensor: Elements = entry.value
        start, end = end, end + tensor.bytes
        table[entry.key] = {
            "dtype": _NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
    head = json.dumps(table, separators=(",", ":")).encode()
    head += b" " * (-len(head) % ALIGNMENT)
    if len(head) > HEADER_LIMIT:
        raise UserError(f"the table of {len(entries)} tensors is beyond the limit of the format; give a --shard-size")
    with writing.file(path) as out:
        out.write(len(head).to_bytes(8, "little") + head)
        for entry in ordered:
            out.stream(entry.value)


def write_shards(writing: Writing, beside: Path, target: Path, entries: Sequence[Entry], limit: int) -> list[Path]:
    """Write a folder of files of at most so many bytes of elements each, unless a tensor alone has more."""
    beside.mkdir()
    shards: list[list[Entry]] = [[]]
    held = 0
    for entry in entries:
        if shards[-1] and held + entry.value.bytes > limit:
            shards.append([])
            held = 0
        shards[-1].append(entry)
        held += entry.value.bytes
    if len(shards) == 1:
        write_file(writing, beside / f"model{SUFFIX}", entries)
        return [target / f"model{SUFFIX}"]
    names = [f"model-{number:05}-of-{len(shards):05}{SUFFIX}" for number in range(1, len(shards) + 1)]
    for name, shard in zip(names, shards, strict=True):
        write_file(writing, beside / name, shard)
    index = {
        "metadata": {"total_size": sum(entry.value.bytes for entry in entries)},
        "weight_map": {entry.key: name for name, shard in zip(names, shards, strict=True) for entry in shard},
    }
    with writing.file(beside / f"model{SUFFIX}.index.json") as out:
        out.write(json.dumps(index, indent=2).encode() + b"\n")
    return [target / name for name in (*names, f"model{SUFFIX}.index.json")]
