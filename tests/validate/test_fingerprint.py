"""A tensor's fingerprint is the sum of its parts', however it was cut."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from pytorch_fsdp2_dcp.validate.fingerprint import BLOCK, MASK, fingerprint


def of(block: np.ndarray, offsets: tuple[int, ...], shape: tuple[int, ...]) -> int:
    data = np.ascontiguousarray(block).reshape(-1).view("u1")
    return fingerprint(data, block.itemsize, sizes=block.shape, offsets=offsets, shape=shape)


def whole(values: np.ndarray) -> int:
    return of(values, (0,) * values.ndim, values.shape)


@pytest.mark.parametrize("dtype", ["u1", "f2", "f4", "f8", "c16"])
@pytest.mark.parametrize("shape", [(), (6,), (5, 7), (4, 3, 5), (3, BLOCK)], ids=str)
def test_the_parts_of_a_tensor_add_up_to_it(dtype: str, shape: tuple[int, ...]) -> None:
    values = (np.random.default_rng(0).random(shape) * 200).astype(dtype)
    for dims in itertools.product((False, True), repeat=len(shape)):
        cuts = [((0, n // 3), (n // 3, n)) if cut else ((0, n),) for n, cut in zip(shape, dims, strict=True)]
        parts = [
            of(values[tuple(slice(*edge) for edge in block)], tuple(low for low, _ in block), shape)
            for block in itertools.product(*cuts)
        ]
        assert sum(parts) & MASK == whole(values)


def test_values_that_have_changed_places_are_told() -> None:
    values = np.arange(12.0).reshape(3, 4)
    assert whole(values) != whole(values[::-1])
    assert whole(values) != whole(values[:, ::-1])
    assert whole(values) != whole(np.nextafter(values, 99))


def test_zeros_of_other_lengths_are_told() -> None:
    assert whole(np.zeros(3)) != whole(np.zeros(4))
