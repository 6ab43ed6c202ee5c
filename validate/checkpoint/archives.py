"""What torch.save wrote, inside a file of a checkpoint: an uncompressed zip of one small pickle and the bytes it names.

A tensor is located, not loaded: its bytes are then read from the checkpoint's file, as many as are wanted. An object is
rebuilt from plain values only; one that asks for more stays opaque, as it would with `torch.load(weights_only=True)`.
"""

from __future__ import annotations

import hashlib
import io
import math
import zipfile
from dataclasses import dataclass
from typing import Any

from ..errors import UserError
from .contents import RAW, TORCH, Chunk, Place, Tensor
from .dtypes import ITEM_SIZES, STORAGES, dtype_of
from .folders import Folder
from .pickles import Damaged, Refused, Vocabulary, empty_mapping, load, numbers, shown

DEEPEST = 64  # containers in containers
MOST = 10_000_000  # values of an object
PICKLE_LIMIT = 2**24  # bytes; the pickle of a chunk has some 200, that of an object seldom more than its scheduler's
READ = 2**20  # bytes read at a time where only their hash is wanted
_HEADER = 30  # bytes of a zip's local header, before the name and the extra field


@dataclass(frozen=True, slots=True)
class Stored:
    """A chunk's elements in a file: the bytes at which the first one lies, and the strides in elements."""

    file: str
    offset: int
    item_size: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Mentioned:
    """A tensor that a pickle rebuilds."""

    dtype: str
    storage: str
    offset: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Opaque:
    """An object that was not rebuilt, and what it asked for."""

    asked: str


class Dtype(str):
    """A dtype among the values of an object, by its name without `torch.`."""

    __slots__ = ()


def locate(folder: Folder, tensor: Tensor, chunk: Chunk) -> Stored:
    """Where the elements of a chunk lie. Raises UserError when its bytes are not what the metadata says."""
    place, item = chunk.place, tensor.item_size
    assert place is not None
    where = f"{folder.where}/{place.file} at {place.offset}, {shown(tensor.key)}"
    if item is None:
        raise Damaged(f"{where}: the dtype {tensor.dtype} is not known to this program; its values cannot be read")
    if place.encoding == RAW:
        return Stored(place.file, place.offset, item, chunk.sizes, chunk.strides or contiguous(chunk.sizes))
    if place.encoding != TORCH:
        raise Damaged(f"{where}: written through {place.encoding}, which this program does not undo")
    try:
        archive = _Archive(folder, place)
        mentioned = load(archive.pickle(), _TENSORS)
        if not isinstance(mentioned, Mentioned):
            raise Damaged("holds no tensor")
        if (mentioned.dtype, mentioned.sizes) != (tensor.dtype, chunk.sizes):
            found = f"{mentioned.dtype} {list(mentioned.sizes)}"
            raise Damaged(f"holds {found} where the metadata says {tensor.dtype} {list(chunk.sizes)}")
        start, _ = archive.elements(mentioned, item)
        return Stored(place.file, start, item, mentioned.sizes, mentioned.strides)
    except UserError as error:
        error.args = (f"{where}: {error}",)
        raise


def load_object(folder: Folder, place: Place) -> Any:
    """The plain value, or Opaque. Raises Damaged when the bytes are not what torch.save writes."""
    if place.encoding != TORCH:
        return Opaque(place.encoding)
    try:
        return load(_Archive(folder, place).pickle(), _OBJECTS)
    except Refused as error:
        return Opaque(error.asked)
    except Damaged as error:
        error.args = (f"{folder.where}/{place.file} at {place.offset}: {error}",)
        raise


def load_located(folder: Folder, place: Place) -> Any:
    """The plain value, with each of its tensors as a Tensor without a key, whose bytes are in the folder's file.

    Raises Refused where `load_object` gives Opaque, and Damaged for one of more values than anyone saves.
    """
    try:
        if place.encoding != TORCH:
            raise Damaged(f"written through {place.encoding}, which this program does not undo")
        archive = _Archive(folder, place)
        return _Locator(archive, place.file).value(load(archive.pickle(), _OBJECTS))
    except UserError as error:
        error.args = (f"{folder.where}/{place.file}{f' at {place.offset}' if place.offset else ''}: {error}",)
        raise


def fingerprint(folder: Folder, place: Place) -> bytes:
    """A hash of an object's pickle and the storages it names, without the records that vary with torch's release."""
    sha = hashlib.sha256()
    parts = [(place.offset, place.length)] if place.encoding != TORCH else _Archive(folder, place).parts()
    for start, length in parts:
        for at in range(0, length, READ):
            sha.update(folder.read(place.file, start + at, min(READ, length - at)))
        sha.update(b"\n")
    return sha.digest()


def contiguous(sizes: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of row-major order, in elements."""
    return tuple(math.prod(sizes[dimension + 1 :]) for dimension in range(len(sizes)))


def _span(sizes: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """Elements from the first to the last one, both included."""
    return 1 + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))


class _Archive:
    """The zip at a place in a file."""

    def __init__(self, folder: Folder, place: Place) -> None:
        self._folder, self._place = folder, place
        window = io.BufferedReader(_Window(folder, place), 4096)
        try:
            entries = zipfile.ZipFile(window).infolist()
        except (zipfile.BadZipFile, ValueError, OSError, NotImplementedError) as error:
            raise Damaged(f"is not what torch.save writes ({shown(str(error))})") from None
        self._entries = {entry.filename.partition("/")[2]: entry for entry in entries}
        if "byteorder" in self._entries and self._bytes("byteorder") != b"little":
            raise Damaged("was written on a big-endian machine, which this program does not read")

    def pickle(self) -> bytes:
        """The pickle, which torch calls data.pkl."""
        return self._bytes("data.pkl")

    def storage(self, key: str) -> tuple[int, int]:
        """Where in the checkpoint's file the bytes of a storage begin, and how many there are."""
        return self._stored(f"data/{key}")

    def elements(self, mentioned: Mentioned, item: int) -> tuple[int, int]:
        """Where in the checkpoint's file the first element of a tensor lies, and the bytes from there to the last."""
        start, length = self.storage(mentioned.storage)
        first = mentioned.offset * item
        span = _span(mentioned.sizes, mentioned.strides) * item if math.prod(mentioned.sizes) else 0
        if span and first + span > length:
            raise Damaged("is larger than the bytes that it names")
        return start + first, span

    def parts(self) -> list[tuple[int, int]]:
        """Where all that makes the object lies: the pickle, then the storages."""
        return [self._stored(name) for name in sorted(self._entries) if name == "data.pkl" or name.startswith("data/")]

    def _bytes(self, name: str) -> bytes:
        start, length = self._stored(name)
        if length > PICKLE_LIMIT:
            raise Damaged(f"its {name} has {length} bytes, which is more than is looked at")
        return self._folder.read(self._place.file, start, length)

    def _stored(self, name: str) -> tuple[int, int]:
        """Where an entry's bytes lie. They are read from there: zipfile would inflate what claims to be compressed."""
        entry = self._entries.get(name)
        if entry is None or entry.compress_type != zipfile.ZIP_STORED:
            raise Damaged(f"has no {name} as torch.save writes it")
        at = self._place.offset + entry.header_offset
        header = self._folder.read(self._place.file, max(at, 0), _HEADER)
        if at < self._place.offset or len(header) < _HEADER or header[:4] != b"PK\3\4":
            raise Damaged(f"has no {name} where its directory says")
        start = at + _HEADER + int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")
        if start + entry.file_size > self._place.end:
            raise Damaged(f"its {name} goes beyond its end")
        return start, entry.file_size


class _Locator:
    """Copies a value, putting the place of each tensor for what the pickle says of it."""

    def __init__(self, archive: _Archive, file: str) -> None:
        self._archive, self._file = archive, file
        self._left = MOST

    def value(self, given: Any, depth: int = 0) -> Any:
        self._left -= 1
        if depth > DEEPEST or self._left < 0:  # a few bytes can describe as many as they like, in a circle even
            limit = f"{DEEPEST} containers in each other" if depth > DEEPEST else f"{MOST} values"
            raise Damaged(f"describes an object of more than {limit}")
        if isinstance(given, dict):
            return {key: self.value(item, depth + 1) for key, item in given.items()}
        if isinstance(given, (list, tuple)):
            items = [self.value(item, depth + 1) for item in given]
            return items if isinstance(given, list) else tuple(items)
        return self._tensor(given) if isinstance(given, Mentioned) else given

    def _tensor(self, given: Mentioned) -> Tensor:
        item = ITEM_SIZES.get(given.dtype)
        if item is None:
            raise Damaged(f"holds a tensor of the dtype {given.dtype}, which is not known to this program")
        place = Place(self._file, *self._archive.elements(given, item), RAW)
        strides = None if given.strides == contiguous(given.sizes) else given.strides
        chunk = Chunk((0,) * len(given.sizes), given.sizes, place, strides)
        return Tensor("", given.dtype, given.sizes, (chunk,))


class _Window(io.RawIOBase):
    """The bytes at a place, as a file."""

    def __init__(self, folder: Folder, place: Place) -> None:
        self._folder, self._place, self._at = folder, place, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._place.length}[whence]
        if base + offset < 0:
            raise ValueError("before the beginning")
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        wanted = max(0, min(len(buffer), self._place.length - self._at))
        data = self._folder.read(self._place.file, self._place.offset + self._at, wanted)
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


def _mentioned(storage: Any, offset: Any, size: Any, stride: Any, dtype: str) -> Mentioned:
    key, storage_dtype = storage
    (start,) = numbers((offset,))
    sizes, strides = numbers(size), numbers(stride)
    if len(sizes) != len(strides) or storage_dtype not in ("", dtype):
        raise TypeError("a tensor that does not fit its storage")
    return Mentioned(dtype, key, start, sizes, strides)


def _rebuild_v2(
    storage: Any, offset: Any, size: Any, stride: Any, _grad: Any = False, _hooks: Any = None, bits: Any = None
) -> Mentioned:
    if bits:
        raise Damaged("holds a tensor whose conjugation or negation is still to be done; save it after resolve_conj()")
    return _mentioned(storage, offset, size, stride, storage[1])


def _rebuild_v3(
    storage: Any, offset: Any, size: Any, stride: Any, _grad: Any, _hooks: Any, dtype: Any, bits: Any = None
) -> Mentioned:
    if type(dtype) is not Dtype or bits:  # no dtype that is rebuilt in this way has conjugates
        raise TypeError("a tensor without a dtype")
    return _mentioned(storage, offset, size, stride, str(dtype))


def _storage(persistent_id: Any) -> tuple[str, str]:
    """The key of a storage, and the dtype of its class; that of an untyped storage is empty."""
    kind, storage_class, key, _, _ = persistent_id
    if kind != "storage" or type(key) is not str or type(storage_class) is not str:
        raise TypeError("a persistent id that is no storage")
    return key, storage_class.removeprefix("untyped")


def _constant(name: str) -> str | None:
    """The dtype that a name or a class of storages stands for."""
    if name in ("torch.storage.UntypedStorage", "torch.UntypedStorage"):
        return "untyped"
    if name.startswith("torch.") and name.endswith("Storage"):
        return STORAGES.get(name[len("torch.") : -len("Storage")])
    dtype = dtype_of(name)
    return None if dtype is None else Dtype(dtype)


def _bytes(text: Any, encoding: Any) -> bytes:
    """What a pickle of protocol 2 calls for bytes."""
    if type(text) is not str or encoding != "latin1":
        raise TypeError("bytes that are no text of latin1")
    return text.encode("latin1")


def _set(items: Any = ()) -> set[Any]:
    if type(items) not in (list, tuple) or not all(isinstance(item, (str, bytes, int, float)) for item in items):
        raise TypeError("a set of what is no plain value")
    return set(items)


def _parameter(data: Any, *_: Any) -> Any:
    return data


_TENSORS = Vocabulary(
    functions={
        "torch._utils._rebuild_tensor_v2": _rebuild_v2,
        "torch._utils._rebuild_tensor_v3": _rebuild_v3,
        "torch._utils._rebuild_parameter": _parameter,
        "collections.OrderedDict": empty_mapping,
    },
    constant=_constant,
    persistent=_storage,
)
_OBJECTS = Vocabulary(
    functions={
        **_TENSORS.functions,
        **{f"{module}.set": _set for module in ("builtins", "__builtin__")},
        "torch.Size": numbers,
        "_codecs.encode": _bytes,
    },
    constant=_constant,
    persistent=_storage,
    ignored=frozenset({"_metadata"}),  # versions of modules, on what Module.state_dict() gives
)
