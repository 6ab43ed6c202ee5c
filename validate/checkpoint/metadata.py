"""DCP's `.metadata`, read by the machine of `pickles`, over the spellings of torch 2.6 to 2.13."""

from __future__ import annotations

import posixpath
from collections.abc import Callable
from typing import Any

from ..errors import UserError
from .contents import TORCH, Chunk, Contents, Place, Tensor
from .dtypes import dtype_of
from .folders import Folder
from .pickles import FURTHEST, Damaged, Record, Vocabulary, empty_mapping, load, numbers, shown

METADATA = ".metadata"
LIMIT = 2**31  # bytes; two million chunks take some 300 MB
NEWEST_MAJOR = 1  # torch 2.13 writes 1.0.0

_HERE = "torch.distributed.checkpoint.metadata."


def _fields(*wanted: str) -> Callable[[Any], tuple[Any, ...]]:
    """Turns the attributes of an object into the values of those wanted, None for one that an older torch lacks."""

    def take(state: Any) -> tuple[Any, ...]:
        if type(state) is not dict:
            raise TypeError(f"the state of an object is a {type(state).__name__}")
        return tuple(state.get(name) for name in wanted)

    return take


def _properties(state: Any) -> tuple[Any, ...]:
    """The dtype, which leads the state of TensorProperties."""
    if type(state) is not tuple or not state or type(state[0]) is not str:
        raise TypeError("properties without a dtype")
    return state[:1]


def _path(*parts: Any) -> str:
    return posixpath.join("", *(part for part in parts if type(part) is str))


def _encoding(*arguments: Any) -> None:  # noqa: ARG001 - the deprecated memory format of a tensor tells nothing
    return None


_VOCABULARY = Vocabulary(
    functions={
        "torch.Size": numbers,
        "torch.serialization._get_layout": _encoding,
        _HERE + "_MEM_FORMAT_ENCODING": _encoding,
        "collections.OrderedDict": empty_mapping,
        **{f"{module}.{kind}": _path for module in ("pathlib", "pathlib._local") for kind in (
            *("PosixPath", "WindowsPath", "PurePosixPath", "PureWindowsPath", "Path"),
        )},
    },
    classes={
        _HERE + "Metadata": _fields("state_dict_metadata", "planner_data", "storage_data", "storage_meta", "version"),
        _HERE + "TensorStorageMetadata": _fields("properties", "size", "chunks"),
        _HERE + "TensorProperties": _properties,
        _HERE + "ChunkStorageMetadata": _fields("offsets", "sizes"),
        _HERE + "BytesStorageMetadata": _fields(),
        _HERE + "StorageMeta": _fields("checkpoint_id", "save_id"),
        _HERE + "MetadataIndex": _fields("fqn", "offset"),
        "torch.distributed.checkpoint.filesystem._StorageInfo": _fields(
            "relative_path", "offset", "length", "transform_descriptors"
        ),
    },
    constant=dtype_of,
)  # fmt: skip


def read_metadata(folder: Folder, name: str = METADATA) -> Contents:
    """What the file says. Raises Refused or Damaged, with the file's name, when that must not or cannot be read."""
    size = folder.files()[name]
    if size > LIMIT:
        raise Damaged(f"{folder.where}/{name}: {size} bytes; expected metadata of at most {LIMIT}")
    try:
        return _contents(load(folder.read(name, 0, size), _VOCABULARY))
    except UserError as error:
        error.args = (f"{folder.where}/{name}: {error}",)
        raise


def merge(parts: list[Contents]) -> Contents:
    """One checkpoint from the metadata that each rank wrote for itself (saving without collectives)."""
    tensors: dict[str, Tensor] = {}
    objects: dict[str, Place | None] = {}
    for part in parts:
        for key, tensor in part.tensors.items():
            known = tensors.get(key)
            if known and (known.dtype, known.shape) != (tensor.dtype, tensor.shape):
                raise Damaged(f"{shown(key)}: the ranks describe it differently")
            seen = {chunk.offsets for chunk in known.chunks} if known else set()
            new = tuple(chunk for chunk in tensor.chunks if chunk.offsets not in seen)
            tensors[key] = Tensor(key, tensor.dtype, tensor.shape, (*(known.chunks if known else ()), *new))
        objects |= part.objects
    first = parts[0]
    paths = {key: path for part in parts for key, path in part.paths.items()}
    return Contents(first.format, tensors, objects, paths, first.version, first.saved_to, first.save_id)


def _contents(metadata: Any) -> Contents:
    entries, planner, storage, meta, version = _state(metadata, "Metadata")
    major = "1" if version is None else _of(version, str).partition(".")[0]
    if major not in map(str, range(NEWEST_MAJOR + 1)):
        raise Damaged(f"is of version {shown(version)}; this program reads versions up to {NEWEST_MAJOR}.x")
    places = _places(_of(storage, dict))
    tensors: dict[str, Tensor] = {}
    objects: dict[str, Place | None] = {}
    for key, entry in _of(entries, dict).items():
        if _of(entry, Record).name == _HERE + "BytesStorageMetadata":
            objects[_of(key, str)] = places.get((key, None))
        else:
            tensors[_of(key, str)] = _tensor(key, entry, places)
    checkpoint_id, save_id = (None, None) if meta is None else _state(meta, "StorageMeta")
    return Contents(
        format="DCP",
        tensors=tensors,
        objects=objects,
        paths=_planner_paths(planner),
        version=version,
        saved_to=checkpoint_id if type(checkpoint_id) is str else None,
        save_id=save_id if type(save_id) is str else None,
    )


def _places(storage: dict[Any, Any]) -> dict[tuple[str, tuple[int, ...] | None], Place]:
    """By key and offsets, where the bytes are. Names are checked here, so that no other module meets a bad one."""
    names: dict[str, str] = {}
    places = {}
    while storage:  # emptied on the way, so that it is not held twice
        index, info = storage.popitem()
        key, offset = _state(index, "MetadataIndex")
        name, start, length, transforms = _state(info, "_StorageInfo", "filesystem")
        if name not in names:
            names[_of(name, str)] = _inside(name)
        if not (0 <= _of(start, int) <= FURTHEST and 0 <= _of(length, int) <= FURTHEST):
            raise Damaged(f"{shown(_of(key, str))}: it lies where no file reaches")
        encoding = TORCH if not transforms else shown(" + ".join(_of(name, str) for name in _of(transforms, list)))
        places[_of(key, str), None if offset is None else numbers(offset)] = Place(names[name], start, length, encoding)
    return places


def _inside(name: str) -> str:
    """The name of a file that lies directly in the folder, which is where DCP's writers put all."""
    if name in ("", ".", "..") or any(mark in name for mark in "/\\\0"):
        raise Damaged(f"names the file {shown(name)}, which is not in the folder; it was not read")
    return name


def _tensor(key: str, entry: Record, places: dict[tuple[str, tuple[int, ...] | None], Place]) -> Tensor:
    properties, size, parts = _state(entry, "TensorStorageMetadata")
    (dtype,) = _state(properties, "TensorProperties")
    shape = numbers(size)
    chunks = []
    for part in _of(parts, list):
        offsets, sizes = _state(part, "ChunkStorageMetadata")
        if not len(numbers(offsets)) == len(numbers(sizes)) == len(shape) or any(
            start + extent > whole for start, extent, whole in zip(offsets, sizes, shape, strict=True)
        ):
            raise Damaged(f"{shown(key)}: the chunk at {list(offsets)} of {list(sizes)} is outside {list(shape)}")
        place = places.get((key, offsets))
        if place is None and not any(offsets):  # an index without offsets means the beginning
            place = places.get((key, None))
        chunks.append(Chunk(offsets, sizes, place))
    return Tensor(key, dtype, shape, tuple(chunks))


def _planner_paths(planner: Any) -> dict[str, tuple[str | int, ...]]:
    """The nested state dict's path for each key, which the default planner records; of another planner, nothing."""
    if type(planner) is not dict:
        return {}
    return {
        key: path
        for key, path in planner.items()
        if type(key) is str and type(path) is tuple and all(map(_is_step, path))
    }


def _is_step(part: Any) -> bool:
    """Whether this can be part of a path: the key of a mapping or the index of a sequence."""
    return type(part) is str or (type(part) is int and -FURTHEST <= part <= FURTHEST)


def _state(record: Any, kind: str, module: str = "metadata") -> Any:
    if type(record) is not Record or record.name != f"torch.distributed.checkpoint.{module}.{kind}":
        raise Damaged(f"holds a {_called(record)} where a {kind} belongs")
    if record.state is None:
        raise Damaged(f"holds a {kind} without its state")
    return record.state


def _of(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise Damaged(f"holds a {_called(value)} where a {kind.__name__} belongs")
    return value


def _called(value: Any) -> str:
    return value.name if type(value) is Record else type(value).__name__
