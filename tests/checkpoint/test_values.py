"""Digests and differences: of the elements, whatever the blocks, the files, the strides and the size of a band."""

from __future__ import annotations

import itertools
import math
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from pytorch_fsdp2_dcp.validate.checkpoint.against import Difference, difference
from pytorch_fsdp2_dcp.validate.checkpoint.digest import digest
from pytorch_fsdp2_dcp.validate.checkpoint.dtypes import ITEM_SIZES, decode, known
from pytorch_fsdp2_dcp.validate.errors import UserError

from .saves import Cuts, digest_in_memory, look, save

TWO_PARTS = {
    "rows": {"w": [[5, 7], [10]]},
    "columns": {"w": [[12], [4, 3, 3]]},
    "a grid": {"w": [[5, 7], [4, 6]]},
    "one row a block": {"w": [[1] * 12, [10]]},
    "one element a block": {"w": [[1] * 12, [1] * 10]},
    "an empty block": {"w": [[12, 0], [10]]},
}


def digests(folder: Path, limit: int) -> dict[str, str]:
    found = look(folder)
    assert found.contents is not None
    return {key: digest(found.folder, tensor, limit) for key, tensor in found.contents.tensors.items()}


def differences(here: Path, there: Path) -> list[Difference]:
    pairs: list[Any] = [(found.folder, found.contents) for found in (look(here), look(there))]
    return list(difference(*pairs))


@pytest.mark.parametrize("cuts", TWO_PARTS.values(), ids=TWO_PARTS)
@pytest.mark.parametrize("limit", [4, 48, 10_000])
def test_a_digest_does_not_depend_on_the_blocks(cuts: Cuts, limit: int, tmp_path: Path) -> None:
    tensor = torch.randn(12, 10)
    save(tmp_path / "cut", {"w": tensor}, cuts)
    assert digests(tmp_path / "cut", limit) == {"w": digest_in_memory(tensor)}


def test_random_shapes_blocks_and_strides_have_the_digest_of_the_whole(tmp_path: Path) -> None:
    generator = random.Random(0)
    state, cuts = {}, {}
    for number in range(40):
        shape = [generator.randrange(1, 7) for _ in range(generator.randrange(5))]
        order = generator.sample(range(len(shape)), len(shape))
        tensor = torch.randint(256, [shape[d] for d in order], dtype=torch.uint8).to(
            generator.choice([torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.complex128])
        )
        state[f"t{number}"] = tensor.permute([order.index(d) for d in range(len(shape))])
        cuts[f"t{number}"] = [parts(generator, size) for size in shape]
    save(tmp_path / "cut", state, cuts, files=3)
    assert [list(t.shape) for t in state.values()] == [[sum(c) for c in cuts[k]] for k in state]
    for limit in (1, 64, 2**20):
        assert digests(tmp_path / "cut", limit) == {key: digest_in_memory(tensor) for key, tensor in state.items()}


def parts(generator: random.Random, size: int) -> list[int]:
    cuts = sorted(generator.sample(range(1, size), generator.randrange(size))) if size > 1 else []
    return [b - a for a, b in itertools.pairwise([0, *cuts, size])]


def test_a_transposed_tensor_of_many_bands_has_its_digest(tmp_path: Path) -> None:
    tensor = torch.randn(300, 700).t()
    save(tmp_path / "saved", {"w": tensor, "image": torch.randn(8, 3, 9, 9).to(memory_format=torch.channels_last)})
    assert digests(tmp_path / "saved", 2**14)["w"] == digest_in_memory(tensor)


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("dtype", [name for name in ITEM_SIZES if name != "float4_e2m1fn_x2"])
def test_each_dtype_is_read_and_compared(dtype: str, tmp_path: Path) -> None:
    kind = getattr(torch, dtype)
    values = torch.tensor([1.0, 2.0, 4.0]).to(kind)
    changed = torch.tensor([1.0, 0.0, 4.0] if dtype != "float8_e8m0fnu" else [1.0, 1.0, 4.0]).to(kind)
    save(tmp_path / "a", {"w": values, "empty": values[:0], "scalar": values[1]})
    save(tmp_path / "b", {"w": changed, "empty": values[:0], "scalar": values[1]})
    assert digests(tmp_path / "a", 2)["w"] == digest_in_memory(values)
    (found,) = differences(tmp_path / "a", tmp_path / "b")
    by = {"bool": 1.0, "float8_e8m0fnu": 1.0}.get(dtype, 2.0)
    assert (found.kind, found.key, found.differing, found.largest, found.at) == ("values", "w", 1, by, (1,))


@pytest.mark.filterwarnings("ignore:invalid value encountered in cast")  # signalling NaNs
@pytest.mark.parametrize("dtype", [name for name in ITEM_SIZES if name.startswith(("float8", "bfloat16"))])
def test_small_floats_have_the_values_that_torch_gives_them(dtype: str) -> None:
    words = (
        torch.arange(256, dtype=torch.int16).to(torch.uint8) if "8" in dtype[:6] else torch.arange(-999, 999).short()
    )
    expected = words.view(getattr(torch, dtype)).double()
    found = torch.from_numpy(
        decode(words.view(torch.uint16 if words.dtype == torch.int16 else torch.uint8).numpy(), dtype).astype("f8")
    )
    assert known(dtype)
    assert torch.equal(found.nan_to_num(nan=12345.0), expected.nan_to_num(nan=12345.0))


@pytest.mark.parametrize(
    ("mine", "theirs", "largest"),
    [
        (torch.tensor([2**63 - 1, -(2**63)]), torch.tensor([-(2**63), -(2**63)]), float(2**64 - 1)),
        (torch.tensor([0, 2**64 - 1], dtype=torch.uint64), torch.tensor([5, 2**64 - 1], dtype=torch.uint64), 5.0),
        (torch.tensor([-128, 1], dtype=torch.int8), torch.tensor([127, 1], dtype=torch.int8), 255.0),
        (torch.tensor([math.nan, 1.0]), torch.tensor([2.0, 1.0]), None),
        (torch.tensor([math.inf, 1.0]), torch.tensor([-math.inf, 1.0]), None),
        (torch.tensor([0.0, math.nan]), torch.tensor([-0.0, math.nan]), 0.0),
        (torch.tensor([1 + 1j, 2.0]), torch.tensor([4 + 5j, 2.0]), 5.0),
    ],
)
def test_the_largest_difference_is_exact_at_the_edges(
    mine: torch.Tensor, theirs: torch.Tensor, largest: float | None, tmp_path: Path
) -> None:
    save(tmp_path / "a", {"w": mine})
    save(tmp_path / "b", {"w": theirs})
    (found,) = differences(tmp_path / "a", tmp_path / "b")
    assert (found.differing, found.largest, found.at) == (1, largest, (0,))


def test_two_checkpoints_of_different_blocks_are_equal(tmp_path: Path) -> None:
    state = {"w": torch.randn(12, 10), "lr": 0.1, "nested": {"betas": (0.9, 0.95)}}
    save(tmp_path / "a", state, TWO_PARTS["rows"])
    save(tmp_path / "b", state, TWO_PARTS["columns"], files=1)
    assert differences(tmp_path / "a", tmp_path / "b") == []


def test_every_kind_of_difference_is_told(tmp_path: Path) -> None:
    tensor = torch.zeros(4, 4)
    moved = tensor.clone()
    moved[2, 3] = -1.5
    moved[0, 0] = 0.5
    shared = {"same": tensor, "lr": 0.1}
    save(tmp_path / "a", {**shared, "w": tensor, "s": tensor, "d": tensor, "mine": 1, "n": 1, "o": {"x": [1]}, "k": 1})
    save(
        tmp_path / "b",
        {**shared, "w": moved, "s": tensor[:2], "d": tensor.half(), "theirs": 1, "n": 2, "o": {"x": [1]}, "k": tensor},
        {"w": [[2, 2], [4]]},
    )
    found = {one.key: one for one in differences(tmp_path / "a", tmp_path / "b")}
    kinds = {
        "w": "values",
        "s": "shape",
        "d": "dtype",
        "mine": "only-here",
        "theirs": "only-there",
        "n": "object",
        "k": "kind",
    }
    assert {key: one.kind for key, one in found.items()} == kinds
    assert found["w"].message == "2 of 16 elements differ, at most by 1.5, at [2, 3]: 0.0 here, -1.5 there"
    assert found["n"].message == "is 1 here, 2 there"


def test_a_tensor_that_is_cut_short_is_no_digest_but_an_error(tmp_path: Path) -> None:
    folder = save(tmp_path / "a", {"w": torch.randn(100)}, files=1)
    file = folder / "__0_0.distcp"
    file.write_bytes(file.read_bytes()[:-600])
    with pytest.raises(UserError, match="__0_0"):
        digests(folder, 64)
