"""A pickle machine that builds plain values and records, and calls nothing but what its vocabulary holds.

Python's own unpickler resolves a name by importing it, and calls what it finds. Restricting that by `find_class` leaves
opcodes that reach attributes (BUILD), call what was pushed earlier (INST, OBJ), allocate by a number in the file
(LONG_BINPUT, lengths of eight bytes) or hash what was nested exponentially. So this machine is its own: a name stays
text, objects are records of a name and a state, no allocation exceeds what was read, and keys hash in constant time.
It knows the opcodes that pickle protocols 2 to 5 write for such data, and refuses every other.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import UserError


class Refused(UserError):
    """The pickle asks for something that is not in the vocabulary; `asked` names it."""

    def __init__(self, asked: str) -> None:
        super().__init__(
            f"asks for {shown(asked)}, which is not among the names that it may hold; nothing was executed"
        )
        self.asked = asked


class Damaged(UserError):
    """The bytes are not what was expected of them, for the reason given."""


class Name:
    """A class or function that the pickle mentions, as text."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text


class Record:
    """An object: the name of its class, and the state that the vocabulary made of what the pickle gave."""

    __slots__ = ("name", "state")

    def __init__(self, name: str) -> None:
        self.name = name
        self.state: Any = None


@dataclass(frozen=True)
class Vocabulary:
    """All that a pickle may mention."""

    functions: Mapping[str, Callable[..., Any]]  # called with the pickle's arguments; raises TypeError or ValueError
    classes: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)  # turns the state of an object into ours
    constant: Callable[[str], Any] = dict[str, Any]().get  # the value that a name stands for, None for no constant
    persistent: Callable[[Any], Any] | None = None  # what a persistent id stands for
    ignored: frozenset[str] = frozenset()  # attributes that a mapping may be given, which are read over


FURTHEST = 2**63 - 1  # what a size or an offset can be
_MARK = object()
_SCALARS = (str, bytes, int, float, bool, type(None))


def load(data: bytes, vocabulary: Vocabulary) -> Any:
    """What the pickle in `data` describes. Raises Refused for a name outside the vocabulary, Damaged for bad bytes."""
    try:
        return _Machine(data, vocabulary).run()
    except (IndexError, KeyError, ValueError, TypeError, AttributeError, struct.error, OverflowError) as error:
        if isinstance(error, UserError):
            raise
        raise Damaged(f"is cut short or damaged ({type(error).__name__}: {shown(str(error))})") from None


def shown(text: str, limit: int = 120) -> str:
    """`text` on one line of printable characters, cut at `limit`: it comes from a file that may be hostile."""
    text = text if text.isprintable() else text.encode("unicode_escape", "surrogatepass").decode()
    return text if len(text) <= limit else text[: limit - 3] + "..."


def empty_mapping(*items: Any) -> dict[Any, Any]:
    """What `OrderedDict()` stands for; a pickle fills it afterwards."""
    if items:
        raise Damaged("builds a mapping from what is no mapping")
    return {}


def numbers(given: Any, kind: type[Any] = tuple) -> tuple[int, ...]:
    """`given` if it is a sequence of that kind, of sizes or offsets."""
    if type(given) is not kind or not all(type(n) is int and 0 <= n <= FURTHEST for n in given):
        raise Damaged("holds what is no size where a size belongs")
    return tuple(given)


class _Machine:
    """The stack, the memo, and the place in the bytes."""

    def __init__(self, data: bytes, vocabulary: Vocabulary) -> None:
        self.data, self.at, self.vocabulary = data, 0, vocabulary
        self.stack: list[Any] = []
        self.memo: list[Any] = []
        self.names: dict[str, Any] = {}

    def run(self) -> Any:
        data, stack, memo, operations = self.data, self.stack, self.memo, _OPERATIONS
        while True:
            code = data[self.at]
            self.at += 1
            if code == 0x94:  # MEMOIZE; the three most frequent opcodes are done here, for speed
                memo.append(stack[-1])
            elif code == 0x68:  # BINGET
                stack.append(memo[data[self.at]])
                self.at += 1
            elif code == 0x4B:  # BININT1
                stack.append(data[self.at])
                self.at += 1
            elif code == 0x2E:  # STOP
                return stack.pop()
            else:
                operation = operations.get(code)
                if operation is None:
                    raise Refused(f"pickle opcode {_OPCODE_NAMES.get(code, hex(code))}")
                operation(self)

    def take(self, count: int) -> bytes:
        """The next `count` bytes."""
        start, end = self.at, self.at + count
        if end > len(self.data):
            raise ValueError(f"{count} bytes wanted at {start}, {len(self.data) - start} there")
        self.at = end
        return self.data[start:end]

    def number(self, size: int) -> int:
        """The next unsigned number of `size` bytes."""
        return int.from_bytes(self.take(size), "little")

    def line(self) -> str:
        """The text up to the next end of line."""
        end = self.data.index(b"\n", self.at)
        text = self.data[self.at : end].decode()
        self.at = end + 1
        return text

    def marked(self) -> list[Any]:
        """What was pushed since the last mark."""
        stack = self.stack
        at = len(stack) - 1
        while stack[at] is not _MARK:
            at -= 1
            if at < 0:
                raise ValueError("no mark")
        items = stack[at + 1 :]
        del stack[at:]
        return items

    def find(self, module: str, name: str) -> Any:
        """The stand-in for a name."""
        text = f"{module}.{name}"
        if text not in self.names:
            known = text in self.vocabulary.functions or text in self.vocabulary.classes
            constant = None if known else self.vocabulary.constant(text)
            if not known and constant is None:
                raise Refused(text)
            self.names[text] = Name(text) if known else constant
        return self.names[text]


def _key(key: Any) -> Any:
    """`key`, if hashing it takes no longer than it looks."""
    if isinstance(key, (*_SCALARS, Record)) or (type(key) is tuple and all(isinstance(k, _SCALARS) for k in key)):
        return key
    raise TypeError(f"{type(key).__name__} as a key")


def _push(value: Callable[[], Any]) -> Callable[[_Machine], None]:
    return lambda m: m.stack.append(value())


def _integer(size: int, *, signed: bool = False) -> Callable[[_Machine], None]:
    return lambda m: m.stack.append(int.from_bytes(m.take(size), "little", signed=signed))


def _long(size: int) -> Callable[[_Machine], None]:
    return lambda m: m.stack.append(int.from_bytes(m.take(m.number(size)), "little", signed=True))


def _text(size: int) -> Callable[[_Machine], None]:
    return lambda m: m.stack.append(m.take(m.number(size)).decode("utf-8", "surrogatepass"))


def _bytes(size: int) -> Callable[[_Machine], None]:
    return lambda m: m.stack.append(m.take(m.number(size)))


def _tuple(count: int) -> Callable[[_Machine], None]:
    def build(m: _Machine) -> None:
        if len(m.stack) < count:
            raise IndexError("stack")
        m.stack[-count:] = [tuple(m.stack[-count:])]

    return build


def _put(size: int) -> Callable[[_Machine], None]:
    def put(m: _Machine) -> None:
        index = m.number(size)
        if index == len(m.memo):  # picklers number in order; so the memo grows with the file only
            m.memo.append(m.stack[-1])
        else:
            m.memo[index] = m.stack[-1]

    return put


def _get(size: int) -> Callable[[_Machine], None]:
    return lambda m: m.stack.append(m.memo[m.number(size)])


def _append(m: _Machine) -> None:
    item = m.stack.pop()
    _list(m.stack[-1]).append(item)


def _appends(m: _Machine) -> None:
    items = m.marked()
    _list(m.stack[-1]).extend(items)


def _list(target: Any) -> list[Any]:
    if type(target) is not list:
        raise TypeError(f"appends to {type(target).__name__}")
    return target


def _setitem(m: _Machine) -> None:
    value, key = m.stack.pop(), m.stack.pop()
    _update(m.stack[-1], [key, value])


def _setitems(m: _Machine) -> None:
    items = m.marked()
    _update(m.stack[-1], items)


def _update(target: Any, items: list[Any]) -> None:
    if type(target) is not dict:
        raise TypeError(f"sets items of {type(target).__name__}")
    for key, value in zip(items[::2], items[1::2], strict=True):
        target[_key(key)] = value


def _additems(m: _Machine) -> None:
    items = m.marked()
    if type(m.stack[-1]) is not set:
        raise TypeError(f"adds to {type(m.stack[-1]).__name__}")
    m.stack[-1].update(map(_key, items))


def _global(m: _Machine) -> None:
    module = m.line()
    m.stack.append(m.find(module, m.line()))


def _stack_global(m: _Machine) -> None:
    name, module = m.stack.pop(), m.stack.pop()
    if type(name) is not str or type(module) is not str:
        raise TypeError("a name that is no text")
    m.stack.append(m.find(module, name))


def _instance(m: _Machine) -> None:  # INST names what it calls; so that a refusal can say it
    module = m.line()
    m.find(module, name := m.line())
    raise Refused(f"pickle opcode INST of {module}.{name}")


def _reduce(m: _Machine) -> None:
    arguments, function = m.stack.pop(), m.stack.pop()
    if type(function) is not Name:
        raise Refused(f"a call of a {type(function).__name__}")
    called = m.vocabulary.functions.get(function.text)
    if called is None:
        raise Refused(f"a call of {function.text}")
    if type(arguments) is not tuple:
        raise TypeError("arguments that are no tuple")
    if m.memo and m.memo[-1] is arguments:
        m.memo[-1] = None  # made for this call, so nothing refers to it again; there is one for each chunk
    m.stack.append(called(*arguments))


def _new(m: _Machine) -> None:
    arguments, of = m.stack.pop(), m.stack.pop()
    if type(of) is not Name or of.text not in m.vocabulary.classes:
        raise Refused(f"an object of {of.text if type(of) is Name else type(of).__name__}")
    if arguments != ():
        raise TypeError(f"arguments for {of.text}")
    m.stack.append(Record(of.text))


def _build(m: _Machine) -> None:
    state, record = m.stack.pop(), m.stack[-1]
    if type(record) is dict and type(state) is dict and state and state.keys() <= m.vocabulary.ignored:
        return
    if type(record) is not Record:
        raise Refused(f"setting the state of {record.text if type(record) is Name else type(record).__name__}")
    record.state = m.vocabulary.classes[record.name](state)
    if type(state) is dict:
        state.clear()  # the same holds for it


def _persistent(m: _Machine) -> None:
    if m.vocabulary.persistent is None:
        raise Refused("pickle opcode BINPERSID")
    m.stack.append(m.vocabulary.persistent(m.stack.pop()))


def _protocol(m: _Machine) -> None:
    if (protocol := m.number(1)) > 5:
        raise Refused(f"pickle protocol {protocol}")


def _frame(m: _Machine) -> None:
    m.take(8)


def _pop(m: _Machine) -> None:
    m.stack.pop()


def _pop_mark(m: _Machine) -> None:
    m.marked()


_OPERATIONS: dict[int, Callable[[_Machine], None]] = {
    ord(code): operation
    for code, operation in {
        "\x80": _protocol,
        "\x95": _frame,
        "(": _push(lambda: _MARK),
        "0": _pop,
        "1": _pop_mark,
        "N": _push(lambda: None),
        "\x88": _push(lambda: True),
        "\x89": _push(lambda: False),
        "J": _integer(4, signed=True),
        "M": _integer(2),
        "\x8a": _long(1),
        "\x8b": _long(4),
        "G": lambda m: m.stack.append(struct.unpack(">d", m.take(8))[0]),
        "\x8c": _text(1),
        "X": _text(4),
        "\x8d": _text(8),
        "C": _bytes(1),
        "B": _bytes(4),
        "\x8e": _bytes(8),
        ")": _push(tuple),
        "]": _push(list),
        "}": _push(dict),
        "\x8f": _push(set),
        "t": lambda m: m.stack.append(tuple(m.marked())),
        "\x85": _tuple(1),
        "\x86": _tuple(2),
        "\x87": _tuple(3),
        "a": _append,
        "e": _appends,
        "s": _setitem,
        "u": _setitems,
        "\x90": _additems,
        "q": _put(1),
        "r": _put(4),
        "j": _get(4),
        "c": _global,
        "\x93": _stack_global,
        "i": _instance,
        "R": _reduce,
        "\x81": _new,
        "b": _build,
        "Q": _persistent,
    }.items()
}

# What a refusal calls the opcodes that no checkpoint needs.
_OPCODE_NAMES = {
    ord(code): name
    for code, name in {
        **{"o": "OBJ", "P": "PERSID", "2": "DUP", "g": "GET", "p": "PUT", "I": "INT", "L": "LONG", "F": "FLOAT"},
        **{"S": "STRING", "T": "BINSTRING", "U": "SHORT_BINSTRING", "V": "UNICODE", "d": "DICT", "l": "LIST"},
        **{"\x82": "EXT1", "\x83": "EXT2", "\x84": "EXT4", "\x91": "FROZENSET", "\x92": "NEWOBJ_EX"},
        **{"\x96": "BYTEARRAY8", "\x97": "NEXT_BUFFER", "\x98": "READONLY_BUFFER"},
    }.items()
}
