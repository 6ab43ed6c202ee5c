"""Covering arrays: few combinations of options that hold every pair, or every triple, of their values.

A row is a whole combination. Rows are built greedily: each starts from a tuple that no row holds yet, completed with
first values, and then takes whichever other value adds the most new tuples. Whether a combination works is asked of a
predicate, of which nothing else is known; a tuple in no combination that works is left out, and told.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

Row = dict[str, str]
Table = Mapping[str, Sequence[str]]
"""The values of each option; the first is the one to take where it does not matter."""

REPAIRS = 2  # other options that may have to change before a tuple works


@dataclass(frozen=True)
class Covering:
    """The rows, and the tuples that no combination that works holds: the smallest only, not what contains them."""

    rows: tuple[Row, ...]
    left_out: tuple[Row, ...]


def cover(
    table: Table, works: Callable[[Row], bool], strength: int, *, dear: Collection[tuple[str, str]] = ()
) -> Covering:
    """Rows that hold every tuple of `strength` values (of as many options) that some combination that works holds.

    `dear` are values, as (option, value), that are in no more rows than their own tuples need: rows take them where a
    row starts, never to add to it. The same arguments give the same rows. A tuple is taken to work in no combination
    when none works that is first values but for the tuple and `REPAIRS` more options, or a row but for the tuple.
    """
    assert 2 <= strength <= len(table)
    return _Cover(table, works, strength, frozenset(dear)).result()


class _Cover:
    """A value of an option is a cell, numbered in the order of the table; a set of cells is an int with those bits."""

    def __init__(
        self, table: Table, works: Callable[[Row], bool], strength: int, dear: frozenset[tuple[str, str]]
    ) -> None:
        self.works, self.strength = works, strength
        self.cells = [(option, value) for option, values in table.items() for value in values]
        numbers = {cell: number for number, cell in enumerate(self.cells)}
        self.columns = [[numbers[option, value] for value in values] for option, values in table.items()]
        self.column_of = [index for index, column in enumerate(self.columns) for _ in column]
        self.dear = {numbers[cell] for cell in dear if cell in numbers}
        self.known: dict[tuple[int, ...], bool] = {}  # rows that `works` was asked about
        self.rows: list[tuple[int, ...]] = []
        self.impossible: list[int] = []  # the smallest impossible tuples
        self.missing: dict[tuple[int, ...], int] = {}  # for all but one of a tuple's cells, which cells are missing

    def result(self) -> Covering:
        for size in range(1, self.strength):  # so that a triple need not be tried when a pair of it cannot be
            for cells in self.tuples(size):
                if not self.is_impossible(cells) and self.complete(cells) is None:
                    self.impossible.append(_mask(cells))
        todo = list(self.tuples(self.strength))
        for cells in todo:
            for cell in cells:
                rest = tuple(other for other in cells if other != cell)
                self.missing[rest] = self.missing.get(rest, 0) | 1 << cell
        todo.sort(key=lambda cells: self.dear.isdisjoint(cells))  # stable: dear ones first, else as in the table
        for cells in todo:
            if self.missing[cells[1:]] >> cells[0] & 1 and not self.is_impossible(cells):
                start = self.complete(cells)
                if start is None:
                    self.impossible.append(_mask(cells))
                else:
                    self.add(self.improve(start, cells))
        return Covering(
            rows=tuple(self.as_row(row) for row in self.rows),
            left_out=tuple(
                {self.cells[cell][0]: self.cells[cell][1] for cell in range(len(self.cells)) if tuple_ >> cell & 1}
                for tuple_ in self.impossible
            ),
        )

    def tuples(self, size: int) -> Iterator[tuple[int, ...]]:
        for columns in itertools.combinations(self.columns, size):
            yield from itertools.product(*columns)

    def is_impossible(self, cells: tuple[int, ...]) -> bool:
        mask = _mask(cells)
        return any(tuple_ & mask == tuple_ for tuple_ in self.impossible)

    def as_row(self, row: tuple[int, ...]) -> Row:
        return dict(self.cells[cell] for cell in row)

    def accepts(self, row: tuple[int, ...]) -> bool:
        if row not in self.known:
            self.known[row] = self.works(self.as_row(row))
        return self.known[row]

    def complete(self, cells: tuple[int, ...]) -> tuple[int, ...] | None:
        """A row that works and holds these cells, the nearest to first values that there is; None for none."""
        first = self.changed(tuple(column[0] for column in self.columns), cells)
        free = [index for index in range(len(self.columns)) if first[index] not in cells]
        for repairs in range(REPAIRS + 1):
            for columns in itertools.combinations(free, repairs):
                for others in itertools.product(*(self.columns[index][1:] for index in columns)):
                    row = self.changed(first, others)
                    if self.accepts(row):
                        return row
        return next((row for other in self.rows if self.accepts(row := self.changed(other, cells))), None)

    def changed(self, row: tuple[int, ...], cells: tuple[int, ...]) -> tuple[int, ...]:
        new = list(row)
        for cell in cells:
            new[self.column_of[cell]] = cell
        return tuple(new)

    def improve(self, row: tuple[int, ...], kept: tuple[int, ...]) -> tuple[int, ...]:
        """The row with other values, except those kept, as long as a change adds tuples that no row holds yet."""
        while True:
            best, gained = row, 0
            for index, column in enumerate(self.columns):
                if row[index] in kept:
                    continue
                rest = row[:index] + row[index + 1 :]
                now = self.new_tuples(rest, row[index])
                for cell in column:
                    gain = self.new_tuples(rest, cell) - now if cell not in self.dear else 0
                    if gain > gained and self.accepts(candidate := self.changed(row, (cell,))):
                        best, gained = candidate, gain
            if best == row:
                return row
            row = best

    def new_tuples(self, rest: tuple[int, ...], cell: int) -> int:
        """How many tuples that no row holds yet `cell` makes with the rest, each counted `strength` - 1 times."""
        mask = _mask(rest)
        return sum(
            (self.missing.get(tuple(sorted((*others, cell))), 0) & mask).bit_count()
            for others in itertools.combinations(rest, self.strength - 2)
        )

    def add(self, row: tuple[int, ...]) -> None:
        self.rows.append(row)
        for cells in itertools.combinations(row, self.strength):
            for cell in cells:
                rest = tuple(other for other in cells if other != cell)
                self.missing[rest] &= ~(1 << cell)


def _mask(cells: Sequence[int]) -> int:
    mask = 0
    for cell in cells:
        mask |= 1 << cell
    return mask
