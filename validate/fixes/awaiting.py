"""FS801: the last asynchronous save is awaited before the function goes on to end."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from ..findings import Finding
from ..reader.nodes import last_name
from .proposal import Proposal
from .script import Change, Function, Script, bound

_ENDS = frozenset({"destroy_process_group", "exit", "_exit", "abort"})


class _Place(NamedTuple):
    """Where a future is surely known to the function again: after `anchor`, in its block.

    `maybe`: the save is in a loop or a branch, so that there may be no future.
    """

    anchor: ast.stmt
    maybe: bool


def awaited_at_the_end(script: Script, finding: Finding) -> Iterator[Proposal]:
    """A call of `.result()` at the end of the block, or before what ends the program; a future not kept is kept."""
    for call in script.calls_at(finding.at):
        statement = script.statement(call)
        if statement.__dict__.get("value") is not call or not script.is_alone(statement):
            continue
        scope = script.scope(statement)
        place = _place(script, statement)
        if place is None or isinstance(scope, ast.ClassDef | ast.Lambda):
            continue
        changes: list[Change] = []
        if isinstance(statement, ast.Expr):
            name = script.fresh("future", scope)
            changes.append(Change(script.start(call), script.start(call), f"{name} = "))
        elif isinstance(statement, ast.Assign) and isinstance(target := statement.targets[0], ast.Name):
            name = target.id
        else:
            continue
        if any(isinstance(n, ast.Global | ast.Nonlocal) and name in n.names for n in ast.walk(scope)):
            continue
        if place.maybe and not _is_none_before(script, place.anchor, name):
            changes.append(script.before(place.anchor, f"{name} = None"))
        for wait in (f"{name}.result()", f"{name}.upload_completion.result()"):
            lines = [f"if {name} is not None:", f"{script.unit}{wait}"] if place.maybe else [wait]
            text = script.changed([*changes, _awaiting(script, place.anchor, name, lines)]).text
            yield Proposal("wait for the save before the end, where its failure surfaces", text, safe=True)


def _place(script: Script, statement: ast.stmt) -> _Place | None:
    """None where the function may end before it comes to a place after the save."""
    anchor, maybe = statement, False
    inner: ast.AST = statement
    for outer in script.above(statement):
        if isinstance(outer, Function | ast.Module | ast.ClassDef):
            return None if maybe and any(isinstance(n, ast.Return) for n in ast.walk(anchor)) else _Place(anchor, maybe)
        stays = isinstance(outer, ast.With | ast.AsyncWith) or (isinstance(outer, ast.Try) and inner in outer.body)
        if isinstance(outer, ast.stmt) and not stays and not _is_main(outer):
            anchor, maybe = outer, True
        inner = outer
    return None


def _awaiting(script: Script, anchor: ast.stmt, name: str, lines: list[str]) -> Change:
    """The lines at the end of the block that `anchor` is in, or before what must not come first."""
    block = script.block(anchor)
    later = block[block.index(anchor) + 1 :]
    for statement in later:
        if _may_end(statement) or name in bound(statement):
            return script.before(statement, *lines)
    return script.after(block[-1], *lines)


def _may_end(statement: ast.stmt) -> bool:
    """Whether the program, or the function, may end in a statement."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return False
    return any(
        isinstance(n, ast.Return | ast.Raise | ast.Break | ast.Continue)
        or (isinstance(n, ast.Call) and last_name(n.func) in _ENDS)
        for n in ast.walk(statement)
    )


def _is_none_before(script: Script, anchor: ast.stmt, name: str) -> bool:
    """Whether the block sets the variable before, so that it may be asked for after."""
    block = script.block(anchor)
    return any(name in bound(s) for s in block[: block.index(anchor)] if isinstance(s, ast.Assign | ast.AnnAssign))


def _is_main(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Compare) and "__name__" in ast.unparse(node.test)
