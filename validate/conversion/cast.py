"""Elements in another dtype, rounded as torch rounds them: to the nearest, ties to even, doubles by way of float32."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..checkpoint.dtypes import decode, known
from ..checkpoint.pickles import shown
from ..errors import UserError

if TYPE_CHECKING:
    import numpy as np

TARGETS = ("float32", "bfloat16", "float16", "float64")
SHORT = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "fp64": "float64"}


def is_floating(dtype: str) -> bool:
    """Whether `--dtype` applies to tensors of this dtype, as `Tensor.is_floating_point` says."""
    return "float" in dtype


def cast(words: np.ndarray[Any, Any], dtype: str, to: str, key: str) -> np.ndarray[Any, Any]:
    """Words of the new dtype's size. Raises UserError for a finite number that would become infinite."""
    if dtype == to:
        return words
    if not known(dtype):
        raise UserError(f"{shown(key)}: --dtype cannot convert {dtype}")
    import numpy as np

    rounded: np.ndarray[Any, Any]
    with np.errstate(over="ignore", invalid="ignore"):
        values = decode(words, dtype)
        if to == "bfloat16":
            single = values.astype(np.float32)
            bits = single.view(np.uint32)
            rounded = ((bits + np.uint32(0x7FFF) + (bits >> 16 & np.uint32(1))) >> 16).astype(np.uint16)
            rounded[np.isnan(single)] = 0x7FC0
            infinite = (rounded & 0x7FFF) == 0x7F80
        else:
            single = values.astype(np.float32) if to == "float16" else values
            rounded = single.astype(np.dtype(to))
            infinite = np.isinf(rounded)
    beyond = infinite & np.isfinite(values)
    if beyond.any():
        raise UserError(
            f"{shown(key)}: holds {float(values[beyond][0]):g}, which is beyond the largest {to}; "
            "nothing was written; convert it to another dtype, or leave it out by --keys"
        )
    return rounded
