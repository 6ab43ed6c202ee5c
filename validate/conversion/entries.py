"""What a source holds, whatever its format: a list of entries, tensors that are still in its files and plain values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..checkpoint.archives import load_located
from ..checkpoint.contents import Contents, Place, Tensor
from ..checkpoint.digest import begun
from ..checkpoint.dtypes import ITEM_SIZES
from ..checkpoint.folders import Folder, LocalFolder, open_folder
from ..checkpoint.layouts import Parts, Steps, survey
from ..checkpoint.pickles import Refused, shown
from ..checkpoint.safetensors import SUFFIX, read_safetensors
from ..checkpoint.values import BAND, bands
from ..errors import UserError
from .cast import cast

BLOCK = 2**20  # bytes of a chunk that are read, hashed and written at a time; they stay in the caches of the CPU
ZIP = b"PK\3\4"

Step = str | int  # into a mapping by a key, into a sequence by an index


@dataclass(frozen=True)
class Elements:
    """A tensor whose elements are read when they are wanted, and the dtype that they then get."""

    folder: Folder
    tensor: Tensor
    dtype: str

    @property
    def shape(self) -> tuple[int, ...]:
        return self.tensor.shape

    @property
    def item_size(self) -> int:
        return ITEM_SIZES[self.dtype]

    @property
    def bytes(self) -> int:
        return self.tensor.elements * self.item_size

    @property
    def origin(self) -> tuple[Any, ...]:
        """The same for two that are one tensor in the source: tied parameters."""
        return (id(self.folder), self.shape, self.dtype, self.tensor.chunks)

    def blocks(self) -> Iterator[memoryview]:
        """The bytes of the elements, little-endian and in row-major order."""
        limit = min(BLOCK * max(1, len(self.tensor.chunks)), BAND)  # so that what is read of a chunk is not too little
        for band in bands(self.folder, self.tensor, limit):
            words = cast(band.words.reshape(-1), self.tensor.dtype, self.dtype, self.tensor.key)
            yield words.view("u1").data

    def hash(self) -> Any:
        """A digest of the tensor, to be fed with its blocks."""
        return begun(self.dtype, self.shape)


@dataclass(frozen=True)
class Entry:
    """One key of a state dict. The value is Elements, or a plain value that may hold some."""

    key: str
    path: tuple[Step, ...]  # in the nested state dict; the parts of the key
    value: Any

    @property
    def is_tensor(self) -> bool:
        return isinstance(self.value, Elements)


@dataclass(frozen=True)
class Source:
    """The keys of a source, and how to get at the entry of each."""

    where: str
    format: str  # DCP, pt, safetensors
    paths: dict[str, tuple[Step, ...]]
    tensors: frozenset[str]
    entry: Callable[[str], Entry]
    digits: str | None = None  # the first key that had a number for a name, which is text now


def open_source(where: str) -> Source:
    """The source at a path. Raises UserError for one that is not whole, or is no source at all."""
    path = Path(where)
    if "://" in where or not path.is_file():
        return _checkpoint(where)
    target = path.resolve()
    folder = LocalFolder(str(target.parent))
    if path.name.endswith(SUFFIX):
        return _of_contents(where, folder, read_safetensors(folder, target.name))
    return _torch_file(where, folder, target.name)


def _checkpoint(where: str) -> Source:
    if not where or ("://" not in where and not Path(where).exists()):
        raise UserError(
            f"{where or repr(where)}: does not exist; expected a checkpoint's folder, a .pt file or a {SUFFIX} file"
        )
    found = survey(open_folder(where))
    if isinstance(found, Steps):
        latest = found.latest
        if latest is None or latest.found is None:
            raise UserError(f"{where}: no checkpoint in it is whole; fsdp2 inspect says what is missing")
        found = latest.found
    if isinstance(found, Parts):
        names = ", ".join(f"{found.folder.where}/{part.folder.name}" for part in found.checkpoints)
        raise UserError(f"{where}: consists of {len(found.checkpoints)} checkpoints; name one of them: {names}")
    if found.problems or found.contents is None:
        raise UserError(f"{found.folder.where}: is not whole: {found.problems[0].message}")
    return _of_contents(found.folder.where, found.folder, found.contents)


def _of_contents(where: str, folder: Folder, contents: Contents) -> Source:
    paths = {key: contents.paths.get(key, (key,)) for key in (*contents.tensors, *contents.objects)}

    def entry(key: str) -> Entry:
        if (tensor := contents.tensors.get(key)) is not None:
            return Entry(key, paths[key], _elements(folder, tensor))
        place = contents.objects[key]
        assert place is not None  # the checkpoint is whole
        return Entry(key, paths[key], _object(folder, place, key))

    return Source(where, contents.format, paths, frozenset(contents.tensors), entry)


def _object(folder: Folder, place: Place, key: str) -> Any:
    try:
        return _with_elements(load_located(folder, place), folder, key)
    except Refused as error:
        raise UserError(
            f"{shown(key)}: its pickle asks for {shown(error.asked)}; only plain values and tensors are converted; "
            f"--keys '!{shown(key)}' leaves it out"
        ) from None


def _elements(folder: Folder, tensor: Tensor) -> Elements:
    if tensor.item_size is None:
        raise UserError(f"{shown(tensor.key)}: the dtype {tensor.dtype} is not known to this program")
    return Elements(folder, tensor, tensor.dtype)


def _with_elements(value: Any, folder: Folder, key: str) -> Any:
    """The value of a key, with Elements for its tensors."""
    if isinstance(value, dict):
        return {name: _with_elements(item, folder, key) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        items = [_with_elements(item, folder, key) for item in value]
        return items if isinstance(value, list) else tuple(items)
    return _elements(folder, replace(value, key=key)) if isinstance(value, Tensor) else value


def _torch_file(where: str, folder: Folder, name: str) -> Source:
    size = folder.files().get(name, 0)
    if folder.read(name, 0, len(ZIP)) != ZIP:
        raise UserError(
            f"{where}: is no zip archive, as torch.save has written since torch 1.6, and does not end in {SUFFIX}"
        )
    state = load_located(folder, Place(name, 0, size))
    if not isinstance(state, dict):
        raise UserError(f"{where}: holds a {type(state).__name__}; expected a dict, such as model.state_dict()")
    values: dict[str, tuple[tuple[Step, ...], Any]] = {}
    digits = None
    for path, key_is_text, value in _leaves(state, (), True):
        key = ".".join(map(str, path))
        if key in values:
            raise UserError(f"{where}: two of its values have the same key, {shown(key)}")
        digits = digits or (None if key_is_text else key)
        values[key] = (path, value)
    paths = {key: path for key, (path, _) in values.items()}
    tensors = frozenset(key for key, (_, value) in values.items() if isinstance(value, Tensor))
    return Source(
        where, "pt", paths, tensors, lambda key: Entry(key, *_located(values[key], folder, key)), digits
    )  # fmt: skip


def _located(found: tuple[tuple[Step, ...], Any], folder: Folder, key: str) -> tuple[tuple[Step, ...], Any]:
    path, value = found
    return path, _with_elements(value, folder, key)


def _leaves(value: Any, path: tuple[Step, ...], key_is_text: bool) -> Iterator[tuple[tuple[Step, ...], bool, Any]]:
    """The values that DCP's planner makes entries of, and an empty mapping, which it would lose."""
    if isinstance(value, dict) and (value or not path):
        for key, item in value.items():
            yield from _leaves(item, (*path, str(key)), key_is_text and type(key) is str)
    elif isinstance(value, list) and _is_walked(value):
        for index, item in enumerate(value):
            yield from _leaves(item, (*path, index), key_is_text)
    else:
        yield path, key_is_text, value


def _is_walked(value: Any) -> bool:
    """Whether the items of a list get keys of their own: where a mapping or a tensor is among them."""
    return isinstance(value, (dict, Tensor)) or (isinstance(value, list) and any(map(_is_walked, value)))


class _Node(dict[Step, Any]):
    """A container of the nested state dict; other than a value that is a dict."""


def nested(entries: Iterable[Entry]) -> dict[Any, Any]:
    """The state dict of which these are the entries. Raises UserError where a part of a list is missing."""
    root = _Node()
    for entry in entries:
        node = root
        for step in entry.path[:-1]:
            node = node.setdefault(step, _Node()) if isinstance(node, _Node) else node
        if not isinstance(node, _Node) or entry.path[-1] in node:
            raise UserError(f"{shown(entry.key)}: its place in the state dict is that of another key")
        node[entry.path[-1]] = entry.value
    return {key: _container(item, (key,)) for key, item in root.items()}


def _container(node: Any, path: tuple[Step, ...]) -> Any:
    """The mapping or list that a node stands for."""
    if not isinstance(node, _Node):
        return node
    items = {step: _container(item, (*path, step)) for step, item in node.items()}
    if not any(type(step) is int for step in items):
        return items
    if set(items) != set(range(len(items))):
        where = shown(".".join(map(str, path)))
        raise UserError(f"{where}: is a list, of which only a part was chosen; choose all of it or none")
    return [items[index] for index in range(len(items))]


def tensors_in(value: Any) -> Iterator[Elements]:
    """All Elements in a value."""
    if isinstance(value, Elements):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)
