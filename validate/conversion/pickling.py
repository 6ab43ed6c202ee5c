"""Writes pickles: the plain values, the tensors and the objects that checkpoints need, by name and without torch.

Protocol 2, and of it what `torch.load(weights_only=True)` reads.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

from ..checkpoint.archives import Dtype, contiguous
from ..checkpoint.dtypes import STORAGES
from ..errors import UserError
from .entries import Elements

_STORAGE_OF = {dtype: name for name, dtype in STORAGES.items()}


@dataclass(frozen=True)
class Name:
    """A class or function, `module` and `name`."""

    module: str
    name: str


@dataclass(frozen=True)
class Call:
    """What a function returns."""

    function: Name
    arguments: tuple[Any, ...]


@dataclass(frozen=True, eq=False)
class Object:
    """An object of a class, with a state unless that is None. By identity it can be a key."""

    kind: Name
    state: Any


@dataclass(frozen=True)
class _Persistent:
    id: tuple[Any, ...]


def pickled(value: Any) -> tuple[bytes, list[Elements]]:
    """The pickle, and the tensors whose elements are its storages, in the order of their numbers."""
    pickler = _Pickler()
    pickler.put(value)
    return bytes(pickler.out + b"."), pickler.storages


class _Pickler:
    def __init__(self) -> None:
        self.out = bytearray(b"\x80\x02")
        self.storages: list[Elements] = []
        self._numbers: dict[tuple[Any, ...], int] = {}  # of storages, by what they hold
        self._names: dict[Name, int] = {}  # in the memo

    def put(self, value: Any) -> None:
        kind = type(value)
        if kind is str:
            data = value.encode("utf-8", "surrogatepass")
            self.out += b"X" + struct.pack("<I", len(data)) + data
        elif kind is int:
            self._int(value)
        elif kind is tuple:
            self._items(value, b"(", b"t")
        elif kind is dict:
            self.out += b"}("
            for key, item in value.items():
                self.put(key)
                self.put(item)
            self.out += b"u"
        elif kind is list:
            self._items(value, b"](", b"e")
        elif value is None or kind is bool:
            self.out += {None: b"N", True: b"\x88", False: b"\x89"}[value]
        elif kind is float:
            self.out += b"G" + struct.pack(">d", value)
        elif kind is bytes:
            self.put(Call(Name("_codecs", "encode"), (value.decode("latin1"), "latin1")))
        elif kind is set:
            self.put(Call(Name("__builtin__", "set"), (sorted(value, key=lambda item: (str(type(item)), item)),)))
        elif kind is Dtype:
            self._name(Name("torch", value))
        else:
            self._node(value)

    def _node(self, value: Any) -> None:
        if isinstance(value, Elements):
            self._tensor(value)
        elif isinstance(value, Name):
            self._name(value)
        elif isinstance(value, Call):
            self._name(value.function)
            self.put(value.arguments)
            self.out += b"R"
        elif isinstance(value, Object):
            self._name(value.kind)
            self.out += b")\x81"
            if value.state is not None:
                self.put(value.state)
                self.out += b"b"
        else:
            assert isinstance(value, _Persistent)
            self.put(value.id)
            self.out += b"Q"

    def _int(self, value: int) -> None:
        if 0 <= value < 2**8:
            self.out += b"K" + struct.pack("<B", value)
        elif -(2**31) <= value < 2**31:
            self.out += b"J" + struct.pack("<i", value)
        else:
            size = value.bit_length() // 8 + 1
            if size > 255:
                raise UserError("a number of more than 255 bytes is among the values; expected plain ones")
            self.out += b"\x8a" + struct.pack("<B", size) + value.to_bytes(size, "little", signed=True)

    def _items(self, items: Any, begin: bytes, end: bytes) -> None:
        self.out += begin
        for item in items:
            self.put(item)
        self.out += end

    def _name(self, name: Name) -> None:
        number = self._names.get(name)
        if number is not None:
            self.out += b"h" + struct.pack("<B", number)
            return
        number = self._names[name] = len(self._names)
        self.out += f"c{name.module}\n{name.name}\n".encode() + b"q" + struct.pack("<B", number)

    def _tensor(self, tensor: Elements) -> None:
        number = self._numbers.setdefault(tensor.origin, len(self._numbers))
        if number == len(self.storages):
            self.storages.append(tensor)
        typed = _STORAGE_OF.get(tensor.dtype)
        storage = Name("torch", f"{typed}Storage") if typed else Name("torch.storage", "UntypedStorage")
        length = tensor.tensor.elements if typed else tensor.bytes
        hooks = Call(Name("collections", "OrderedDict"), ())
        place = _Persistent(("storage", storage, str(number), "cpu", length))
        common = (place, 0, tensor.shape, contiguous(tensor.shape), False, hooks)
        if typed:
            self.put(Call(Name("torch._utils", "_rebuild_tensor_v2"), common))
        else:
            self.put(Call(Name("torch._utils", "_rebuild_tensor_v3"), (*common, Name("torch", tensor.dtype))))
