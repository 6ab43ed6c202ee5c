"""Writes a checkpoint of DCP: one data file, each key an archive in it, and `.metadata`, last.

The names in the metadata are those of torch 2.6 to 2.13, which differ in fields that have defaults.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..checkpoint.metadata import METADATA
from .archive import write_archive
from .entries import Elements, Entry
from .output import Writing
from .pickling import Call, Name, Object, pickled

DATA = "__0_0.distcp"  # as rank 0 names its first file
VERSION = "1.0.0"
_PLACE = Name("torch.distributed.checkpoint.filesystem", "_StorageInfo")


def write_dcp(writing: Writing, beside: Path, target: Path, entries: Sequence[Entry]) -> list[Path]:
    """Write the folder. `beside` is its path until it is published."""
    beside.mkdir()
    places: dict[Object, Object] = {}
    with writing.file(beside / DATA) as out:
        for entry in entries:
            start = out.written
            length = write_archive(out, entry.value)
            places[_index(entry)] = Object(_PLACE, {"relative_path": DATA, "offset": start, "length": length})
    state = {
        "state_dict_metadata": {entry.key: _described(entry.value) for entry in entries},
        "planner_data": {entry.key: entry.path for entry in entries},
        "storage_data": places,
        "storage_meta": _object(
            "StorageMeta",
            {"checkpoint_id": str(target), "save_id": str(uuid.uuid4()), "load_id": None, "modules": []},
        ),
        "version": VERSION,
    }
    metadata, _ = pickled(_object("Metadata", state))
    with writing.file(beside / METADATA) as out:
        out.write(metadata)
    return [target / DATA, target / METADATA]


def _index(entry: Entry) -> Object:
    value = entry.value
    where = {"offset": _size((0,) * len(value.shape)), "index": 0} if isinstance(value, Elements) else {"index": None}
    return _object("MetadataIndex", {"fqn": entry.key, **where})


def _described(value: Any) -> Object:
    if not isinstance(value, Elements):
        return _object("BytesStorageMetadata", None)
    layout = Call(Name("torch.serialization", "_get_layout"), ("torch.strided",))
    contiguous = Call(Name("torch.distributed.checkpoint.metadata", "_MEM_FORMAT_ENCODING"), (0,))
    properties = (Name("torch", value.dtype), layout, False, contiguous, False)
    chunk = _object("ChunkStorageMetadata", {"offsets": _size((0,) * len(value.shape)), "sizes": _size(value.shape)})
    return _object(
        "TensorStorageMetadata",
        {"properties": _object("TensorProperties", properties), "size": _size(value.shape), "chunks": [chunk]},
    )


def _object(kind: str, state: Any) -> Object:
    return Object(Name("torch.distributed.checkpoint.metadata", kind), state)


def _size(sizes: tuple[int, ...]) -> Call:
    return Call(Name("torch", "Size"), (sizes,))
