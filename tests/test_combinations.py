"""The covering arrays: each tuple that works is in a row, every row works, and what is left out cannot work."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import pytest

from .combinations import Row, Table, cover

Works = Callable[[Row], bool]

SMALL: Table = {"a": "012", "b": "01", "c": "0123", "d": "01", "e": "012"}
CONSTRAINTS: dict[str, Works] = {
    "no constraint": lambda _: True,
    "a pair that cannot be": lambda row: not (row["a"] == "2" and row["c"] == "3"),
    "a triple that cannot be": lambda row: not (row["a"] == "1" and row["b"] == "1" and row["e"] == "2"),
    "a value that needs another": lambda row: row["c"] != "2" or row["e"] == "1",
    "a value that needs two others": lambda row: row["c"] != "2" or (row["e"], row["d"]) == ("1", "1"),
    "a value that cannot be": lambda row: row["a"] != "1",
    "first values that cannot be": lambda row: not (row["a"] == "0" and row["b"] == "0"),
    "pairs that exclude each other in a circle": lambda row: len({row["a"], row["c"], row["e"]}) > 1,
}


def brute_force(table: Table, works: Works, strength: int) -> set[frozenset[tuple[str, str]]]:
    """All tuples of `strength` values that the full product, less what does not work, holds."""
    held = set()
    for values in itertools.product(*table.values()):
        row = dict(zip(table, values, strict=True))
        if works(row):
            held |= set(map(frozenset, itertools.combinations(row.items(), strength)))
    return held


def held_by(rows: tuple[Row, ...], strength: int) -> set[frozenset[tuple[str, str]]]:
    return {frozenset(held) for row in rows for held in itertools.combinations(row.items(), strength)}


@pytest.mark.parametrize("strength", [2, 3, 4])
@pytest.mark.parametrize("name", CONSTRAINTS)
def test_the_rows_hold_exactly_what_the_full_product_holds(name: str, strength: int) -> None:
    works = CONSTRAINTS[name]
    covering = cover(SMALL, works, strength)
    assert all(works(row) and list(row) == list(SMALL) for row in covering.rows)
    assert held_by(covering.rows, strength) == brute_force(SMALL, works, strength)


@pytest.mark.parametrize("strength", [2, 3])
@pytest.mark.parametrize("name", CONSTRAINTS)
def test_what_is_left_out_is_what_no_combination_holds_and_only_the_smallest(name: str, strength: int) -> None:
    works = CONSTRAINTS[name]
    left_out = {frozenset(impossible.items()) for impossible in cover(SMALL, works, strength).left_out}
    assert not any(one < other for one in left_out for other in left_out)
    for size in range(1, strength + 1):
        every = brute_force(SMALL, CONSTRAINTS["no constraint"], size)
        assert {held for held in every if any(one <= held for one in left_out)} == every - brute_force(
            SMALL, works, size
        )


@pytest.mark.parametrize(
    ("sizes", "strength", "most"), [((2,) * 4, 2, 6), ((3,) * 4, 2, 11), ((2,) * 10, 2, 9), ((2,) * 5, 3, 13)]
)
def test_the_rows_are_few(sizes: tuple[int, ...], strength: int, most: int) -> None:
    """The best that is known: 5, 9, 6, 10 rows."""
    table = {str(option): list(map(str, range(size))) for option, size in enumerate(sizes)}
    assert len(cover(table, CONSTRAINTS["no constraint"], strength).rows) <= most


def test_a_dear_value_is_in_no_more_rows_than_its_pairs_need() -> None:
    rows = cover(SMALL, CONSTRAINTS["no constraint"], 2, dear={("d", "1")}).rows
    assert held_by(rows, 2) == brute_force(SMALL, CONSTRAINTS["no constraint"], 2)
    assert sum(row["d"] == "1" for row in rows) == len(SMALL["c"])


def test_the_same_table_gives_the_same_rows_and_a_new_value_or_option_is_taken_in() -> None:
    works = CONSTRAINTS["a pair that cannot be"]
    assert cover(SMALL, works, 2) == cover(dict(SMALL), works, 2)
    wider = {**SMALL, "b": "0123", "new": "01"}
    assert held_by(cover(wider, works, 2).rows, 2) == brute_force(wider, works, 2)


def test_random_constraints_are_honoured() -> None:
    """Twenty tables, each with a few pairs and triples that exclude each other."""
    for seed in range(20):
        dice = random.Random(seed)
        table = {str(option): list(map(str, range(dice.randint(2, 4)))) for option in range(5)}
        forbidden = [
            {option: dice.choice(table[option]) for option in dice.sample(list(table), dice.choice((2, 2, 3)))}
            for _ in range(4)
        ]

        def works(row: Row, forbidden: list[Row] = forbidden) -> bool:
            return not any(bad.items() <= row.items() for bad in forbidden)

        assert held_by(cover(table, works, 2).rows, 2) == brute_force(table, works, 2), seed
