"""The dtypes of tensors by torch's names: their sizes, and their values as NumPy numbers, also where NumPy has none."""

from __future__ import annotations

import math
import re
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

ITEM_SIZES = {  # bytes
    **{"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "complex32": 4, "complex64": 8, "complex128": 16},
    **{"int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint64": 8, "uint32": 4, "uint16": 2, "uint8": 1, "bool": 1},
    **{"float8_e4m3fn": 1, "float8_e4m3fnuz": 1, "float8_e5m2": 1, "float8_e5m2fnuz": 1, "float8_e8m0fnu": 1},
    "float4_e2m1fn_x2": 1,
}
STORAGES = {  # the classes that torch.save names for the dtypes of its first years
    **{"Float": "float32", "Double": "float64", "Half": "float16", "BFloat16": "bfloat16", "Long": "int64"},
    **{"Int": "int32", "Short": "int16", "Char": "int8", "Byte": "uint8", "Bool": "bool"},
    **{"ComplexFloat": "complex64", "ComplexDouble": "complex128"},
}
_DTYPE = re.compile(r"torch\.((?:b?float|u?int|q?u?int|complex|bits)\d+(?:_?[a-z0-9]+)*|bool)")
_NUMPY = frozenset(("float64", "float32", "float16", "complex64", "complex128", "bool")) | {
    f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)
}
_MINIFLOATS = {  # exponent bits, mantissa bits, bias, and how the largest codes are spent
    "float8_e4m3fn": (4, 3, 7, "nan"),
    "float8_e5m2": (5, 2, 15, "inf"),
    "float8_e4m3fnuz": (4, 3, 8, "minus zero"),
    "float8_e5m2fnuz": (5, 2, 16, "minus zero"),
}


def dtype_of(name: str) -> str | None:
    """`float32` for `torch.float32`; None for a name that is not that of a dtype. New ones have a name like the old."""
    match = _DTYPE.fullmatch(name)
    return match[1] if match else None


def known(dtype: str) -> bool:
    """Whether the values of this dtype can be computed with."""
    return dtype in _NUMPY or dtype in _MINIFLOATS or dtype in ("bfloat16", "complex32", "float8_e8m0fnu")


def decode(words: np.ndarray[Any, Any], dtype: str) -> np.ndarray[Any, Any]:
    """The values that unsigned words of the dtype's size stand for; `known` says for which dtypes."""
    import numpy as np

    if dtype in _NUMPY:
        return words.view(dtype)
    if dtype == "bfloat16":
        return (words.astype(np.uint32) << 16).view(np.float32)
    if dtype == "complex32":
        halves = words.view(np.float16).reshape(*words.shape, 2).astype(np.float32)
        return halves[..., 0] + 1j * halves[..., 1]
    table: np.ndarray[Any, Any] = np.asarray(_table(dtype), dtype=np.float64)
    return np.take(table, words)


@cache
def _table(dtype: str) -> tuple[float, ...]:
    """The value of each of the 256 codes."""
    if dtype == "float8_e8m0fnu":
        return (*(math.ldexp(1.0, code - 127) for code in range(255)), math.nan)
    exponents, mantissas, bias, largest = _MINIFLOATS[dtype]
    values = []
    for code in range(256):
        exponent, mantissa = code >> mantissas & (1 << exponents) - 1, code & (1 << mantissas) - 1
        if exponent:
            value = math.ldexp((1 << mantissas) + mantissa, exponent - bias - mantissas)
        else:
            value = math.ldexp(mantissa, 1 - bias - mantissas)
        top = exponent == (1 << exponents) - 1
        if largest == "inf" and top:
            value = math.nan if mantissa else math.inf
        elif code == 0x80 if largest == "minus zero" else largest == "nan" and top and mantissa + 1 == 1 << mantissas:
            value = math.nan
        values.append(-value if code & 0x80 else value)
    return tuple(values)
