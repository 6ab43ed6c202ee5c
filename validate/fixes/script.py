"""The text of a file beside its syntax tree: where a node lies in the text, and changes to the text by nodes."""

from __future__ import annotations

import ast
import bisect
import functools
import re
import warnings
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeVar

from ..events import Location

N = TypeVar("N", bound=ast.AST)
Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
Located = ast.expr | ast.stmt | ast.keyword | ast.alias

_TEXT = (str, bytes)
_END_OF_LINE = re.compile(r"\r\n|\r|\n")  # as Python counts lines


class Change(NamedTuple):
    """The characters from `start` to `end` are replaced by `by`."""

    start: int
    end: int
    by: str


class Script:
    """A text that parses. Raises what `ast.parse` does when it does not. A byte order mark is not part of the text."""

    def __init__(self, text: str) -> None:
        self.text = text
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.tree = ast.parse(text)
        self._starts = [0, *(match.end() for match in _END_OF_LINE.finditer(text))]

    # --- places ---

    def offset(self, line: int, column: int) -> int:
        """The place in the text of a line (from 1) and a column as syntax trees have it: bytes of UTF-8 from 0."""
        text = self.line(line)
        return self._starts[line - 1] + (column if text.isascii() else len(text.encode()[:column].decode()))

    def start(self, node: Located) -> int:
        """Where the node begins."""
        return self.offset(node.lineno, node.col_offset)

    def end(self, node: Located) -> int:
        """Where the node ends."""
        assert node.end_lineno is not None and node.end_col_offset is not None  # as in every tree that was parsed
        return self.offset(node.end_lineno, node.end_col_offset)

    def source(self, node: Located) -> str:
        """The text of a node, without parentheses around it."""
        return self.text[self.start(node) : self.end(node)]

    def line(self, number: int) -> str:
        """A line (from 1) with its end."""
        return self.text[self.line_start(number) : self.line_start(number + 1)]

    def line_start(self, number: int) -> int:
        """Where a line begins; the end of the text for a line behind the last."""
        return self._starts[number - 1] if number <= len(self._starts) else len(self.text)

    def line_at(self, offset: int) -> int:
        """The number of the line that a place lies on."""
        return bisect.bisect_right(self._starts, offset)

    @functools.cached_property
    def newline(self) -> str:
        """How the lines of the file end: as the first does."""
        match = _END_OF_LINE.search(self.text)
        return match[0] if match else "\n"

    @functools.cached_property
    def unit(self) -> str:
        """By how much the file indents a block: as the first one."""
        for node in ast.walk(self.tree):
            for body in _bodies(node):
                if isinstance(node, ast.stmt) and body[0].lineno > node.lineno:
                    outer, inner = self.indent(node), self.indent(body[0])
                    if inner.startswith(outer) and inner != outer:
                        return inner[len(outer) :]
        return "    "

    def indent(self, statement: ast.stmt) -> str:
        """The white space before a statement."""
        line = self.line(first_line(statement))
        return line[: len(line) - len(line.lstrip(" \t\f"))]

    def is_alone(self, statement: ast.stmt) -> bool:
        """Whether no other statement is on the lines of this one."""
        assert statement.end_lineno is not None
        before = self.text[self.line_start(first_line(statement)) : self.start(statement)]
        decorated = bool(getattr(statement, "decorator_list", []))
        after = self.text[self.end(statement) : self.line_start(statement.end_lineno + 1)].strip()
        return (decorated or not before.strip()) and (not after or after.startswith("#"))

    # --- the tree ---

    @functools.cached_property
    def parents(self) -> dict[ast.AST, ast.AST]:
        """The node that holds each node."""
        return {inner: outer for outer in ast.walk(self.tree) for inner in ast.iter_child_nodes(outer)}

    def above(self, node: ast.AST) -> Iterator[ast.AST]:
        """The nodes that hold this one, the innermost first."""
        while (outer := self.parents.get(node)) is not None:
            yield outer
            node = outer

    def statement(self, node: ast.AST) -> ast.stmt:
        """The innermost statement that a node is part of."""
        return node if isinstance(node, ast.stmt) else next(n for n in self.above(node) if isinstance(n, ast.stmt))

    def scope(self, node: ast.AST) -> ast.Module | ast.ClassDef | Function:
        """The function, class or module that a node is evaluated in."""
        return next(n for n in self.above(node) if isinstance(n, ast.Module | ast.ClassDef | Function))

    def block(self, statement: ast.stmt) -> list[ast.stmt]:
        """The statements one of which this one is."""
        return next(body for body in _bodies(self.parents[statement]) if statement in body)

    def calls_at(self, at: Location) -> list[ast.Call]:
        """The calls that begin at a place, the outermost first: `f(x).g(y)` and `f(x)` begin together."""
        return [
            node
            for node in ast.walk(self.tree)
            if isinstance(node, ast.Call) and (node.lineno, node.col_offset + 1) == (at.line, at.column)
        ]

    def names(self, within: ast.AST) -> set[str]:
        """All names that appear in a part of the tree."""
        return {n.id for n in ast.walk(within) if isinstance(n, ast.Name)} | {
            n.arg for n in ast.walk(within) if isinstance(n, ast.arg)
        }

    def fresh(self, wanted: str, scope: ast.AST) -> str:
        """A name that the scope does not have yet, `wanted` if possible."""
        taken = self.names(self.tree if isinstance(scope, ast.Module) else scope) | imported(self.tree)
        return next(name for name in (wanted, *(f"{wanted}_{n}" for n in range(2, 1000))) if name not in taken)

    @functools.cached_property
    def _inside_strings(self) -> set[int]:
        """The lines that begin inside a string, whose white space is part of it."""
        return {
            line
            for node in ast.walk(self.tree)
            if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and node.value.__class__ in _TEXT)
            for line in range(node.lineno + 1, (node.end_lineno or node.lineno) + 1)
        }

    # --- changes ---

    def changed(self, changes: Sequence[Change]) -> Script:
        """The script after changes that do not overlap."""
        text = self.text
        for change in sorted(changes, reverse=True):
            text = text[: change.start] + change.by + text[change.end :]
        return Script(text)

    def inserted(self, before_line: int, indent: str, *lines: str) -> Change:
        """Whole lines put before a line (from 1)."""
        text = "".join(indent + line + self.newline for line in lines)
        start = self.line_start(before_line)
        if start == len(self.text) and self.text and not self.text.endswith(("\n", "\r")):
            text = self.newline + text.removesuffix(self.newline)  # a file that does not end with a line's end stays so
        return Change(start, start, text)

    def before(self, statement: ast.stmt, *lines: str) -> Change:
        """Whole lines put before a statement, indented as it is."""
        return self.inserted(first_line(statement), self.indent(statement), *lines)

    def after(self, statement: ast.stmt, *lines: str) -> Change:
        """Whole lines put after a statement, indented as it is."""
        assert statement.end_lineno is not None
        return self.inserted(statement.end_lineno + 1, self.indent(statement), *lines)

    def reindented(self, first: int, last: int, old: str, new: str) -> str:
        """Lines `first` to `last` with the indentation `new` in the place of `old`; what is in strings stays."""
        found = []
        for number in range(first, last + 1):
            line = self.line(number)
            if number not in self._inside_strings and line.startswith(old) and line.strip():
                line = new + line[len(old) :]
            found.append(line)
        return "".join(found)


def first_line(statement: ast.stmt) -> int:
    """The line that a statement begins on, its decorators included."""
    decorators: list[ast.expr] = getattr(statement, "decorator_list", [])
    return min([statement.lineno, *(d.lineno for d in decorators)])


def imported(tree: ast.Module) -> set[str]:
    """The names that import statements anywhere in a file bind."""
    return {
        (alias.asname or alias.name).partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }


def bound(node: ast.AST) -> set[str]:
    """The names that a part of the tree binds."""
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)} | {
        n.name for n in ast.walk(node) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    }


def used(node: ast.AST) -> set[str]:
    """The names that a part of the tree reads."""
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}


def _bodies(node: ast.AST) -> Iterator[list[ast.stmt]]:
    """The blocks of statements that a node holds."""
    for name in ("body", "orelse", "finalbody"):
        body = getattr(node, name, None)
        if isinstance(body, list) and body:
            yield body
