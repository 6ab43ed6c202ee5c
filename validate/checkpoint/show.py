"""Checkpoints as people and programs read them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ..errors import UserError
from ..report import plural
from .against import Difference, line, summary
from .archives import load_object
from .contents import Contents, Place
from .folders import Folder
from .layouts import Checkpoint, Parts, Step, Steps
from .pickles import shown
from .preview import preview
from .whole import Remark, needed, rank_of

TABLE_LIMIT = 20  # rows of a table as text, unless more are asked for
CHUNK_LIMIT = 64  # chunks of a tensor as text; JSON has them all


def size(number: int) -> str:
    """Bytes in units of a thousand, as disks are sold: `812 B`, `1.50 GB`."""
    if number < 1000:
        return f"{number} B"
    units = ("kB", "MB", "GB", "TB", "PB", "EB")
    power = min((len(str(number)) - 1) // 3, len(units))
    return f"{number / 1000**power:.3g} {units[power - 1]}"


def steps_text(found: Steps, *, every: bool) -> list[str]:
    """The steps of a run, newest last; the oldest are left out unless `every` is wanted."""
    latest = f"the latest whole is {shown(found.latest.name)}" if found.latest else "none is whole"
    lines = [f"{shown(found.folder.where)}: {plural(len(found.steps), 'checkpoint')}, {latest}"]
    steps = found.steps if every else found.steps[-TABLE_LIMIT:]
    if len(steps) < len(found.steps):
        lines.append(f"  {len(found.steps) - len(steps)} older ones; --verbose shows them")
    for step in steps:
        if step.whole and step.found:
            lines.append(f"  {shown(step.name)}: whole, {size(step.found.bytes)}")
        else:
            lines.append(f"  {shown(step.name)}: not whole: {_remarks(step.problems)}")
    return lines


def text(
    checkpoint: Checkpoint, keys: Sequence[str] | None, digests: Mapping[str, str], *, every: bool, tables: bool
) -> list[str]:
    """A checkpoint as lines: the verdict, what keeps it from being whole, totals, and the tables if wanted."""
    contents = checkpoint.contents
    verdict = "whole" if checkpoint.whole else "NOT WHOLE"
    lines = [f"{shown(checkpoint.folder.where)}: {verdict} ({checkpoint.layout} layout)"]
    problems = checkpoint.problems if every else checkpoint.problems[:TABLE_LIMIT]
    lines += [f"  problem: {remark.message}" for remark in problems]
    if len(problems) < len(checkpoint.problems):
        lines.append(f"  ... and {len(checkpoint.problems) - len(problems)} more problems; --verbose shows them")
    lines += [f"  note: {remark.message}" for remark in checkpoint.notes]
    if contents is None or not tables:
        return lines
    lines += _totals(checkpoint, contents, every=every)
    lines += _tensors(contents, keys, digests, every=every)
    lines += _objects(checkpoint.folder, contents, keys, every=every)
    return lines


def _totals(checkpoint: Checkpoint, contents: Contents, *, every: bool) -> list[str]:
    tensors = sum(tensor.bytes for tensor in contents.tensors.values())
    version = (
        f"{contents.format} {contents.version}" if contents.version else f"{contents.format} of no recorded version"
    )
    lines = [
        f"  {plural(len(contents.tensors), 'tensor')}, {size(tensors)}; {plural(len(contents.objects), 'object')}; "
        f"{plural(len(needed(contents)), 'file')}; {version}, torch's version not recorded"
    ]
    if contents.saved_to:
        lines.append(f"  saved to {shown(contents.saved_to)}")
    ranks = _ranks(contents).values()
    if len(ranks) > 1:
        uneven = max(ranks) * len(ranks) / max(1, sum(ranks))
        lines.append(
            f"  {len(ranks)} ranks wrote {size(min(ranks))} to {size(max(ranks))} each; "
            f"the most is {uneven:.2f} times the mean"
        )
    rows = [(shown(top), str(count), size(total)) for top, count, total in _tops(contents)]
    lines += ["", *_table(("part", "tensors", "bytes"), rows, every=every)]
    files = [(shown(name), size(wanted), _held(checkpoint.folder, name)) for name, wanted in needed(contents).items()]
    return [*lines, "", *_table(("file", "needed", "there"), files, every=every)]


def _held(folder: Folder, name: str) -> str:
    return size(folder.files()[name]) if name in folder.files() else "missing"


def _tops(contents: Contents) -> list[tuple[str, int, int]]:
    """Per part of the state dict: its name, tensors, and bytes of tensors."""
    tops = contents.tops()
    counts = Counter(tops[key] for key in contents.tensors)
    totals: Counter[str] = Counter(dict.fromkeys(tops.values(), 0))
    for key, tensor in contents.tensors.items():
        totals[tops[key]] += tensor.bytes
    return [(top, counts[top], total) for top, total in sorted(totals.items(), key=lambda item: (-item[1], item[0]))]


def _ranks(contents: Contents) -> dict[int, int]:
    """By rank, the bytes that it wrote."""
    ranks: Counter[int] = Counter()
    for place in contents.places():
        if (rank := rank_of(place.file)) is not None:
            ranks[rank] += place.length
    return dict(sorted(ranks.items()))


def _tensors(contents: Contents, keys: Sequence[str] | None, digests: Mapping[str, str], *, every: bool) -> list[str]:
    tensors = [contents.tensors[key] for key in (contents.tensors if keys is None else keys) if key in contents.tensors]
    if not tensors:
        return []
    if keys is None and not every:
        header = ("tensor", "dtype", "shape", "bytes", "chunks", *(["sha256"] if digests else []))
        rows = [
            (shown(t.key), t.dtype, str(list(t.shape)), size(t.bytes), str(len(t.chunks)),
             *([digests.get(t.key, "not read")] if digests else []))
            for t in tensors
        ]  # fmt: skip
        return ["", *_table(header, rows, every=False)]
    lines = [""]
    for tensor in tensors:
        digest = f", sha256 {digests.get(tensor.key, 'not read')}" if digests else ""
        lines.append(f"{shown(tensor.key)}: {tensor.dtype} {list(tensor.shape)}, {size(tensor.bytes)}{digest}")
        lines += [
            f"    at {list(chunk.offsets)}, {list(chunk.sizes)}: {_place(chunk.place)}"
            for chunk in tensor.chunks[:CHUNK_LIMIT]
        ]
        if len(tensor.chunks) > CHUNK_LIMIT:
            lines.append(f"    ... and {len(tensor.chunks) - CHUNK_LIMIT} more chunks; --format json has them all")
    return lines


def _objects(folder: Folder, contents: Contents, keys: Sequence[str] | None, *, every: bool) -> list[str]:
    chosen = [key for key in (contents.objects if keys is None else keys) if key in contents.objects]
    if not chosen:
        return []
    detailed = keys is not None or every
    rows = [] if detailed else chosen[:TABLE_LIMIT]
    lines = ["", "objects"]
    for key in chosen if detailed else rows:
        place = contents.objects[key]
        where = f" ({_place(place)})" if detailed else ""
        lines.append(f"  {shown(key)}: {_value(folder, place)}{where}")
    if not detailed and len(rows) < len(chosen):
        lines.append(f"  ... and {len(chosen) - len(rows)} more; --keys PATTERN or --verbose shows them")
    return lines


def _value(folder: Folder, place: Place | None) -> str:
    if place is None or place.file not in folder.files():
        return "missing"
    try:
        return preview(load_object(folder, place))
    except UserError as error:
        return f"unreadable: {error}"


def _place(place: Place | None) -> str:
    return "in no file" if place is None else f"{shown(place.file)}, {place.length} bytes at {place.offset}"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]], *, every: bool) -> list[str]:
    """Columns, the first one to the left; cut at TABLE_LIMIT rows unless every row is wanted."""
    kept = rows if every else rows[:TABLE_LIMIT]
    widths = [max(len(row[column]) for row in (header, *kept)) for column in range(len(header))]
    lines = [
        "  ".join(cell.ljust(width) if column == 0 else cell.rjust(width) for column, (cell, width) in
                  enumerate(zip(row, widths, strict=True))).rstrip()
        for row in (header, *kept)
    ]  # fmt: skip
    if len(kept) < len(rows):
        lines.append(f"... and {len(rows) - len(kept)} more; --keys PATTERN or --verbose shows them")
    return lines


def differences_text(where: str, found: list[Difference], keys: int, *, every: bool) -> list[str]:
    """The difference of two checkpoints as lines."""
    kept = found if every else found[:TABLE_LIMIT]
    lines = ["", f"against {shown(where)}: {summary(found, keys)}", *(f"  {line(one)}" for one in kept)]
    if len(kept) < len(found):
        lines.append(f"  ... and {len(found) - len(kept)} more; --verbose shows them")
    return lines


def as_json(
    checkpoint: Checkpoint, keys: Sequence[str] | None, digests: Mapping[str, str] | None, *, values: bool
) -> dict[str, Any]:
    """A checkpoint as the command contract lays it down; the values of objects only where they are asked for."""
    contents, folder = checkpoint.contents, checkpoint.folder
    document: dict[str, Any] = {
        "path": folder.where,
        "layout": checkpoint.layout,
        "whole": checkpoint.whole,
        "problems": _remarks_json(checkpoint.problems),
        "notes": _remarks_json(checkpoint.notes),
        "format": contents and contents.format,
        "version": contents and contents.version,
        "saved_to": contents and contents.saved_to,
        "save_id": contents and contents.save_id,
        **{part: [] for part in ("tensors", "objects", "totals", "files", "ranks")},
    }
    if contents is None:
        return document
    chosen = (*contents.tensors, *contents.objects) if keys is None else keys
    document["tensors"] = [
        {
            "key": tensor.key,
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "bytes": tensor.bytes,
            "digest": (digests or {}).get(tensor.key),
            "chunks": [
                {"offsets": list(chunk.offsets), "sizes": list(chunk.sizes), **_place_json(chunk.place)}
                for chunk in tensor.chunks
            ],
        }
        for tensor in (contents.tensors[key] for key in chosen if key in contents.tensors)
    ]
    document["objects"] = [
        {"key": key, "value": _value(folder, place) if values else None, **_place_json(place)}
        for key, place in ((key, contents.objects[key]) for key in chosen if key in contents.objects)
    ]
    document["totals"] = [{"part": part, "tensors": n, "bytes": total} for part, n, total in _tops(contents)]
    document["files"] = [
        {"file": name, "needed": wanted, "bytes": folder.files().get(name)} for name, wanted in needed(contents).items()
    ]
    document["ranks"] = [{"rank": rank, "bytes": total} for rank, total in _ranks(contents).items()]
    return document


def steps_json(steps: Iterable[Step]) -> list[dict[str, Any]]:
    """The steps of a run."""
    return [
        {
            "name": step.name,
            "step": step.number,
            "whole": step.whole,
            "bytes": step.found.bytes if step.found else 0,
            "problems": _remarks_json(step.problems),
        }
        for step in steps
    ]


def differences_json(where: str, found: list[Difference], keys: int) -> dict[str, Any]:
    """The difference of two checkpoints."""
    return {
        "path": where,
        "equal": not found,
        "keys": keys,
        "differences": [{**asdict(one), "at": None if one.at is None else list(one.at)} for one in found],
    }


def _place_json(place: Place | None) -> dict[str, Any]:
    if place is None:
        return {"file": None, "offset": None, "length": None}
    return {"file": place.file, "offset": place.offset, "length": place.length}


def _remarks(found: Sequence[Remark]) -> str:
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    return found[0].message + more


def _remarks_json(found: Sequence[Remark]) -> list[dict[str, str]]:
    return [asdict(remark) for remark in found]


def kind(found: Checkpoint | Parts | Steps) -> str:
    """What the folder is, in a word."""
    return {Checkpoint: "checkpoint", Parts: "parts", Steps: "steps"}[type(found)]
