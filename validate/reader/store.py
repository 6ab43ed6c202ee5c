"""All that can change while a program is walked, with the means to try one side of a branch and then the other."""

from __future__ import annotations

from collections.abc import Callable

from .values import Value

Cell = tuple[int, str]  # the owner's identity and a name: a variable, `.attribute`, `[*]` or a `%fact`
Changes = dict[Cell, "Value | None"]


class Store:
    """Cells with values, and a journal of what they held before."""

    def __init__(self) -> None:
        self._cells: dict[Cell, Value] = {}
        self._names: dict[int, dict[str, None]] = {}
        self._journal: list[tuple[Cell, Value | None]] = []
        # The value in a cell; None when it holds none. Asked of more than anything: it is the dictionary's own method.
        self.get: Callable[[Cell], Value | None] = self._cells.get

    def names(self, owner: int) -> list[str]:
        """The names of the owner's cells that hold something."""
        return [name for name in self._names.get(owner, ()) if (owner, name) in self._cells]

    def set(self, cell: Cell, value: Value | None) -> None:
        """Put a value into the cell, or empty it."""
        before = self.get(cell)
        self._journal.append((cell, before))
        if value is not None:
            if before is None:
                self._names.setdefault(cell[0], {})[cell[1]] = None
            self._cells[cell] = value
        elif before is not None:
            del self._cells[cell]

    def apply(self, changes: Changes) -> None:
        """Put values into several cells."""
        for cell, value in changes.items():
            self.set(cell, value)

    def mark(self) -> int:
        """A point in time to which `rollback` can return."""
        return len(self._journal)

    def since(self, mark: int) -> Changes:
        """What the cells written since `mark` hold now."""
        get = self.get
        return {cell: get(cell) for cell, _ in self._journal[mark:]}

    def rollback(self, mark: int) -> None:
        """Return to the state at `mark`."""
        cells = self._cells
        for cell, value in reversed(self._journal[mark:]):
            if value is None:
                cells.pop(cell, None)
            else:
                cells[cell] = value
        del self._journal[mark:]
