"""Whether a checkpoint is whole, and exactly what is missing; and what lies in its folder that it does not need."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from .contents import Contents
from .folders import Folder
from .metadata import METADATA
from .pickles import shown

_DATA_FILE = re.compile(r"__(\d+)_\d+\.distcp|shard-(\d+)-model-\d+-of-\d+\.safetensors")
_RANK_METADATA = re.compile(r"__(\d+)\.metadata")
_TEMPORARY = re.compile(r"(?:__\d+)?\.metadata\.tmp")
NAMED = 8  # files or keys that a message names


@dataclass(frozen=True)
class Remark:
    """Something about a checkpoint: its kind, for programs, and the sentence."""

    kind: str
    message: str


def rank_of(file: str) -> int | None:
    """The rank that wrote a data file, by its name; safetensors shards are numbered from 1."""
    match = _DATA_FILE.fullmatch(file)
    if match is None:
        return None
    return int(match[1]) if match[1] else max(int(match[2]) - 1, 0)


def metadata_files(folder: Folder) -> list[str]:
    """`.metadata`, or those that the ranks wrote each for itself; empty where no save came to its end."""
    files = folder.files()
    if METADATA in files:
        return [METADATA]
    return sorted((name for name in files if _RANK_METADATA.fullmatch(name)), key=lambda name: int(name[2:-9]))


def unfinished(folder: Folder) -> Remark:
    """What to say of a folder without metadata."""
    data = [name for name in folder.files() if rank_of(name) is not None]
    size = sum(folder.files()[name] for name in data)
    there = f"{len(data)} data files of {size} bytes are there" if data else "no data file is there either"
    return Remark("no-metadata", f"no {METADATA}, which DCP writes last: the save did not finish; {there}")


def problems(folder: Folder, contents: Contents) -> list[Remark]:
    """All that keeps a checkpoint from being whole."""
    return [*_files(folder, contents), *_coverage(contents)]


def needed(contents: Contents) -> dict[str, int]:
    """By file, how many bytes it must have at least."""
    ends: dict[str, int] = {}
    for place in contents.places():
        if place.end > ends.get(place.file, -1):
            ends[place.file] = place.end
    return dict(sorted(ends.items(), key=lambda item: (rank_of(item[0]) or 0, item[0])))


def _files(folder: Folder, contents: Contents) -> Iterator[Remark]:
    files, outsiders = folder.files(), folder.outsiders()
    used = Counter(place.file for place in contents.places())
    for name, size in needed(contents).items():
        if name in files:
            if files[name] < size:
                yield Remark("file-short", f"{shown(name)}: {files[name]} bytes, {size} needed")
            continue
        if name in outsiders:
            yield Remark(
                "file-outside", f"{shown(name)}: no file of this folder (a link that leads out?); it was not read"
            )
        else:
            yield Remark(
                "file-missing", f"{shown(name)}: missing; it holds {used[name]} chunks and objects, {size} bytes"
            )


def _coverage(contents: Contents) -> Iterator[Remark]:
    for key, place in contents.objects.items():
        if place is None:
            yield Remark("no-place", f"{shown(key)}: no file holds it")
    for key, tensor in contents.tensors.items():
        homeless = [chunk for chunk in tensor.chunks if chunk.place is None]
        if homeless:
            where = list(homeless[0].offsets)
            yield Remark("no-place", f"{shown(key)}: no file holds {len(homeless)} of its chunks, the first at {where}")
        blocks = {chunk.offsets: chunk.elements for chunk in tensor.chunks if chunk.elements}
        held = sum(blocks.values())
        if held < tensor.elements:
            yield Remark("gap", f"{shown(key)}: {tensor.elements - held} of {tensor.elements} elements are in no chunk")


def notes(folder: Folder, contents: Contents | None) -> list[Remark]:
    """What lies in the folder besides the checkpoint, and what that tells."""
    files = folder.files()
    found = []
    temporary = sorted(name for name in files if _TEMPORARY.fullmatch(name))
    if temporary:
        saved = "a later save into this folder" if contents else "a save"
        found.append(Remark("temporary", f"{', '.join(temporary)}: {saved} died before it published its metadata"))
    if contents is None:
        return found
    wanted = needed(contents)
    ranks = [rank for name in wanted if (rank := rank_of(name)) is not None]
    left = {name: rank for name in files if (rank := rank_of(name)) is not None and name not in wanted}
    if left:
        larger = ranks and min(left.values()) > max(ranks)
        of = f"a larger world size (ranks to {max(left.values())})" if larger else "another save"
        size = sum(files[name] for name in left)
        found.append(
            Remark("left-over", f"{_named(list(left))}: left over from {of}, {size} bytes that nothing refers to")
        )
    return found


def _named(names: list[str]) -> str:
    names = sorted(names, key=lambda name: (rank_of(name) or 0, name))
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more
