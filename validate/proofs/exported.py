"""Compares the tensors of a file with the weights that a run had in memory, by fingerprint, under all names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from ..checkpoint.pickles import shown
from ..checkpoint.values import bands
from ..conversion.cast import is_floating
from ..conversion.entries import Elements, Source
from ..fingerprint import MASK, fingerprint
from ..probe.whole import Whole, WholeState
from ..wrappers import plain_name


@dataclass(frozen=True)
class Model:
    """The weights of one model in memory: of each FQN its tensor, and the FQNs that are one tensor together."""

    weights: Mapping[str, Whole]
    ties: tuple[tuple[str, ...], ...]


@dataclass
class Examined:
    """What came of one file: `prefix` is that of the weights in it, `casts` what floats were converted to."""

    prefix: str
    compared: int = 0
    casts: set[str] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)
    differ: int = 0  # problems that are other values


def models(state: WholeState) -> list[Model]:
    """The models whose parameters optimizers step, with their persistent buffers where there is but one."""
    numbers = {number for names in state.names.values() for number, _ in names}
    found = []
    for number in sorted(numbers):
        weights: dict[str, Whole] = {}
        ties: list[tuple[str, ...]] = []
        for name, names in state.names.items():
            own = tuple(plain_name(fqn) for n, fqn in names if n == number)
            whole = state.tensors["parameters"].get(name)
            if own and whole is not None:
                weights |= dict.fromkeys(own, whole)
                ties.append(own)
        if len(numbers) == 1:
            for name, whole in state.tensors["buffers"].items():
                weights[plain_name(name)] = whole
                ties.append((plain_name(name),))
        found.append(Model(weights, tuple(ties)))
    return found


def find(source: Source, found: list[Model]) -> tuple[Model, str] | None:
    """The model of which a file holds most weights, and the prefix of their keys; None where it holds half of none.

    Of several that hold as many, such as the weights and their average, the one that differs least.
    """
    held: list[tuple[int, Model, str]] = []
    keys = [plain_name(key) for key in source.tensors]
    for model in found:
        prefixes: Counter[str] = Counter()
        for key in keys:
            parts = key.split(".")
            for cut in range(len(parts)):
                if ".".join(parts[cut:]) in model.weights:
                    prefixes["".join(f"{part}." for part in parts[:cut])] += 1
        held += [(count, model, prefix) for prefix, count in prefixes.items() if 2 * count >= len(model.weights)]
    most = max((count for count, _, _ in held), default=0)
    likely = sorted(((model, prefix) for count, model, prefix in held if count == most), key=lambda one: one[1])
    if len(likely) > 1:
        likely.sort(key=lambda one: len(examine(source, *one, dtype=None, every_name=False).problems))
    return likely[0] if likely else None


def examine(source: Source, model: Model, prefix: str, *, dtype: str | None, every_name: bool) -> Examined:
    """Compare the weights in a file with those in memory.

    `dtype`: what floats should be in it; None allows any. `every_name`: of tied weights it must hold each name.
    """
    keys = {plain_name(key): key for key in source.tensors}
    result = Examined(prefix)
    for names in model.ties:
        held = [name for name in names if prefix + name in keys]
        for name in names if every_name or not held else ():
            if name not in held:
                tied = f", which is tied to `{held[0]}`" if held else ""
                result.problems.append(f"it lacks `{name}`{tied}")
        for name in held:
            elements = source.entry(keys[prefix + name]).value
            assert isinstance(elements, Elements), "it is among the tensors"
            result.compared += 1
            _compare(name, elements, model.weights[name], dtype, result)
    return result


def _compare(name: str, elements: Elements, whole: Whole, dtype: str | None, result: Examined) -> None:
    if tuple(elements.shape) != whole.shape:
        result.problems.append(f"`{name}` is {list(elements.shape)} in it and {list(whole.shape)} in memory")
        return
    if dtype is not None and is_floating(whole.dtype) and elements.dtype != dtype:
        result.problems.append(f"`{name}` is {shown(elements.dtype)} in it; expected {dtype}")
        return
    if elements.dtype == whole.dtype:
        expected = whole.sums
    elif elements.dtype in whole.casts:
        result.casts.add(elements.dtype)
        expected = frozenset({whole.casts[elements.dtype]})
    else:
        result.problems.append(f"`{name}` is {shown(elements.dtype)} in it and {whole.dtype} in memory")
        return
    if expected and _sum(elements) not in expected:
        result.differ += 1
        result.problems.append(f"`{name}` has other values")


def _sum(elements: Elements) -> int:
    """The fingerprint of a tensor in a file."""
    total = 0
    for band in bands(elements.folder, elements.tensor):
        data = band.words.reshape(-1).view("u1")
        total += fingerprint(
            data, elements.item_size, sizes=band.words.shape, offsets=band.offsets, shape=elements.shape
        )  # fmt: skip
    return total & MASK
