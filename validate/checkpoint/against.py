"""The difference of two checkpoints: keys, shapes, dtypes, and values, which may be sharded in different ways."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any

from ..errors import UserError
from .archives import Mentioned, Opaque, fingerprint, load_object
from .contents import Contents, Place, Tensor
from .dtypes import decode, known
from .folders import Folder
from .pickles import shown
from .preview import preview
from .values import bands, numpy

if TYPE_CHECKING:
    import numpy as np

SLICE = 2**17  # elements whose difference is computed at a time, in double precision
COMPARED = 100_000  # values of an object that are compared before it counts as different


@dataclass(frozen=True)
class Difference:
    """How the entries of one key differ. `largest` is None where no number says it, `at` where no place does."""

    kind: str  # only-here, only-there, kind, shape, dtype, values, object, unreadable
    key: str
    message: str
    differing: int | None = None  # elements
    largest: float | None = None
    at: tuple[int, ...] | None = None


def difference(
    here: tuple[Folder, Contents], there: tuple[Folder, Contents], keys: list[str] | None = None
) -> Iterator[Difference]:
    """Each key that is not the same in both, in order; `keys`, if given, are all that is looked at."""
    (folder, contents), (other_folder, other) = here, there
    mine, theirs = {*contents.tensors, *contents.objects}, {*other.tensors, *other.objects}
    for key in sorted(mine | theirs) if keys is None else keys:
        if key not in theirs:
            yield Difference("only-here", key, "is only here")
        elif key not in mine:
            yield Difference("only-there", key, "is only there")
        elif (key in contents.tensors) != (key in other.tensors):
            yield Difference("kind", key, "is a tensor in one and an object in the other")
        else:
            try:
                if key in contents.tensors:
                    found = _tensors(folder, contents.tensors[key], other_folder, other.tensors[key])
                else:
                    found = _objects(key, folder, contents.objects[key], other_folder, other.objects[key])
            except UserError as error:
                found = Difference("unreadable", key, f"cannot be compared: {error}")
            if found is not None:
                yield found


def _tensors(folder: Folder, tensor: Tensor, other_folder: Folder, other: Tensor) -> Difference | None:
    key = tensor.key
    if tensor.shape != other.shape:
        return Difference("shape", key, f"has shape {list(tensor.shape)} here, {list(other.shape)} there")
    if tensor.dtype != other.dtype:
        return Difference("dtype", key, f"is {tensor.dtype} here, {other.dtype} there")
    np = numpy()
    differing, largest, at, words = 0, -1.0, 0, ("", "")
    done = 0
    for mine, theirs in zip(bands(folder, tensor), bands(other_folder, other), strict=True):
        flat, flat_other = mine.words.reshape(-1), theirs.words.reshape(-1)
        for start in range(0, flat.size, SLICE):
            a, b = flat[start : start + SLICE], flat_other[start : start + SLICE]
            unequal = _unequal(a, b)
            number = int(np.count_nonzero(unequal))
            if number:
                differing += number
                values, by = _by(a, b, tensor.dtype)
                by[~unequal] = -1.0
                most = int(by.argmax())
                if by[most] > largest:
                    largest, at = float(by[most]), done + start + most
                    words = (str(values[0][most]), str(values[1][most]))
        done += flat.size
    if not differing:
        return None
    where = tuple(int(n) for n in np.unravel_index(at, tensor.shape)) if tensor.shape else ()
    how_many = f"{differing} of {tensor.elements} elements differ"
    if not known(tensor.dtype):
        return Difference(
            "values", key, f"{how_many}; how much is not known for {tensor.dtype}", differing, None, where
        )
    size = f"at most by {largest:g}" if np.isfinite(largest) else "at most by what is not finite"
    message = f"{how_many}, {size}, at {list(where)}: {words[0]} here, {words[1]} there"
    return Difference("values", key, message, differing, largest if np.isfinite(largest) else None, where)


def _unequal(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Which elements differ in any bit."""
    if a.itemsize > 8:
        a, b = a.view("u8").reshape(-1, 2), b.view("u8").reshape(-1, 2)
        return numpy().asarray((a != b).any(axis=1))  # type: ignore[no-any-return]
    unequal: np.ndarray[Any, Any] = a != b
    return unequal


def _by(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any], dtype: str) -> tuple[Any, np.ndarray[Any, Any]]:
    """The values, and by how much they differ: nothing between NaNs, infinitely between a NaN and a number."""
    np = numpy()
    if not known(dtype):
        return (a, b), np.zeros(a.shape)
    x, y = decode(a, dtype), decode(b, dtype)
    if x.dtype.kind in "iu":
        low, high = np.minimum(x, y), np.maximum(x, y)
        exact = high.astype(np.uint64) - low.astype(np.uint64)  # right for negative ones too: it wraps
        return (x, y), exact.astype(np.float64)
    wide = np.complex128 if x.dtype.kind == "c" else np.float64
    with np.errstate(all="ignore"):
        x_wide, y_wide = x.astype(wide), y.astype(wide)
        by = np.abs(x_wide - y_wide)
    by[np.isnan(x_wide) & np.isnan(y_wide)] = 0.0
    by[np.isnan(by)] = np.inf
    return (x, y), np.asarray(by)


def _objects(
    key: str, folder: Folder, place: Place | None, other_folder: Folder, other: Place | None
) -> Difference | None:
    if place is None or other is None:
        return Difference("unreadable", key, "no file holds it in one of them")
    if fingerprint(folder, place) == fingerprint(other_folder, other):
        return None
    mine, theirs = load_object(folder, place), load_object(other_folder, other)
    if same(mine, theirs):
        return None
    words = preview(mine), preview(theirs)
    if words[0] == words[1]:
        return Difference("object", key, f"is {words[0]} in both, but of other bytes")
    return Difference("object", key, f"is {words[0]} here, {words[1]} there")


def same(mine: Any, theirs: Any) -> bool:
    """Whether two plain values are equal. False when they hold what is not compared by value, or very much."""
    pairs, compared = [(mine, theirs)], count()
    while pairs:
        a, b = pairs.pop()
        if next(compared) > COMPARED or type(a) is not type(b) or isinstance(a, (Opaque, Mentioned)):
            return False
        if isinstance(a, dict):
            if a.keys() != b.keys():
                return False
            pairs += [(a[key], b[key]) for key in a]
        elif isinstance(a, (list, tuple)):
            if len(a) != len(b):
                return False
            pairs += zip(a, b, strict=True)
        elif a != b and not (a != a and b != b):  # NaN equals NaN here
            return False
    return True


def summary(found: list[Difference], keys: int) -> str:
    """`equal` or how many of the keys differ."""
    return f"equal ({keys} keys)" if not found else f"{len(found)} of {keys} keys differ"


def line(found: Difference) -> str:
    """One difference as a line."""
    return f"{shown(found.key)}: {found.message}"
