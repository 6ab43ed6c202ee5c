"""Checkpoints in safetensors files: those that DCP's HuggingFaceStorageWriter writes, and whole ones as others do.

Each file begins with a table of its tensors. A file that one rank wrote says in it where its blocks belong; the shape
of a tensor is then what its blocks reach to, for nothing else records it.
"""

from __future__ import annotations

import json
import math

from .contents import RAW, Chunk, Contents, Place, Tensor
from .dtypes import ITEM_SIZES
from .folders import Folder
from .pickles import Damaged, numbers, shown

SUFFIX = ".safetensors"
HEADER_LIMIT = 100_000_000  # bytes, the limit of the format
DTYPES = {  # the names of the format
    **{"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "C64": "complex64"},
    **{f"{letter}{bits}": f"{sign}int{bits}" for letter, sign in (("I", ""), ("U", "u")) for bits in (8, 16, 32, 64)},
    **{"BOOL": "bool", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu"},
}


def safetensors_files(folder: Folder) -> list[str]:
    """The safetensors files of a folder."""
    return [name for name in folder.files() if name.endswith(SUFFIX)]


def read_safetensors(folder: Folder, only: str | None = None) -> Contents:
    """What the tables of all its files say, or that of `only` one. Raises Damaged for a file that is none."""
    blocks: dict[str, list[tuple[str, Chunk]]] = {}
    version = None
    for file in safetensors_files(folder) if only is None else [only]:
        version = _read(folder, file, blocks) or version
    tensors = {}
    for key, found in sorted(blocks.items()):
        dtypes, ranks = {dtype for dtype, _ in found}, {len(chunk.sizes) for _, chunk in found}
        if len(dtypes) > 1 or len(ranks) > 1:
            raise Damaged(f"{folder.where}: {shown(key)}: its blocks differ in dtype or in number of dimensions")
        chunks = tuple(chunk for _, chunk in found)
        reach = zip(*(map(sum, zip(chunk.offsets, chunk.sizes, strict=True)) for chunk in chunks), strict=True)
        tensors[key] = Tensor(key, found[0][0], tuple(map(max, reach)), chunks)
    return Contents("safetensors", tensors, {}, version=version)


def missing_files(folder: Folder) -> list[str]:
    """Files that an index in the folder names and that are not there."""
    index = next((name for name in folder.files() if name.endswith(f"{SUFFIX}.index.json")), None)
    if index is None:
        return []
    size = folder.files()[index]
    try:
        if size > HEADER_LIMIT:
            raise ValueError(f"{size} bytes")
        named = {str(file) for file in json.loads(folder.read(index, 0, size))["weight_map"].values()}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise Damaged(f"{folder.where}/{index}: is no index of safetensors files ({shown(str(error))})") from None
    return sorted(named - set(folder.files()))


def _read(folder: Folder, file: str, blocks: dict[str, list[tuple[str, Chunk]]]) -> str | None:
    """Add the blocks of one file; the version of DCP that it names."""
    try:
        return _parse(folder, file, blocks)
    except Damaged as error:
        error.args = (f"{folder.where}/{file}: {error}",)
        raise
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise Damaged(f"{folder.where}/{file}: is cut short or damaged ({shown(str(error))})") from None


def _parse(folder: Folder, file: str, blocks: dict[str, list[tuple[str, Chunk]]]) -> str | None:
    size = folder.files()[file]
    length = int.from_bytes(folder.read(file, 0, 8), "little")
    if size < 8 or length > min(size - 8, HEADER_LIMIT):
        raise Damaged("is cut short or no safetensors file")
    table = json.loads(folder.read(file, 8, length))
    told = table.pop("__metadata__", None) or {}
    sharding = json.loads(told["DCP_SHARDING_INFO"]) if told.get("DCP_SHARDING_INFO") else {}
    for key, entry in table.items():
        dtype = DTYPES.get(entry["dtype"], shown(str(entry["dtype"])))
        sizes = numbers(entry["shape"], list)
        offsets = numbers(sharding[key]["saved_offsets"], list) if key in sharding else (0,) * len(sizes)
        start, end = numbers(entry["data_offsets"], list)
        item = ITEM_SIZES.get(dtype)
        if len(offsets) != len(sizes) or end < start or (item and end - start != math.prod(sizes) * item):
            raise Damaged(f"{shown(key)}: its place, shape and dtype do not agree")
        place = Place(file, 8 + length + start, end - start, RAW)
        blocks.setdefault(key, []).append((dtype, Chunk(offsets, sizes, place)))
    version = told.get("DCP_VERSION")
    return None if version is None else shown(str(version))
