"""FS102: what all ranks must do together leaves the `if rank == 0:` around it; the rest stays there.

The same means serve other fixes that need a place on all ranks before such a condition.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from itertools import groupby

from ..findings import Finding
from ..reader.nodes import last_name
from .proposal import Proposal
from .script import Change, Function, Script, bound, used

# Calls that give the same on each rank and do nothing else, so that all ranks may make them.
_HARMLESS = {
    "state_dict", "get_state_dict", "get_model_state_dict", "get_optimizer_state_dict", "StateDictOptions",
    "FileSystemWriter", "FileSystemReader", "Path", "join", "str", "int", "float", "bool", "len", "dict", "list",
    "tuple", "set", "sorted", "format", "getattr", "replace", "get_rng_state", "items", "keys", "values",
}  # fmt: skip
_AFTER_TEST = re.compile(r"[\s)]*:")


def out_of_the_guard(script: Script, finding: Finding) -> Iterator[Proposal]:
    """The collective and what it needs leave a condition; which one decides on the rank is found by trying."""
    for call in script.calls_at(finding.at):
        statement = script.statement(call)
        if not _is_its_own(statement, call):
            continue
        for guard, child in guards_of(script, statement):
            if (together := _with_what_it_needs(guard, child, call)) is None:
                continue
            for index in range(len(conjuncts(guard))):
                if (change := opened(script, guard, index, together)) is not None:
                    text = script.changed([change]).text
                    yield Proposal("let every rank make this call; keep the rest for one rank", text, safe=False)


def guards_of(script: Script, node: ast.AST) -> Iterator[tuple[ast.If, ast.stmt]]:
    """The `if` statements whose first branch holds a node, the innermost first, and the statement there that does."""
    inner = node
    for outer in script.above(node):
        if isinstance(outer, Function | ast.ClassDef):
            return
        if isinstance(outer, ast.If) and isinstance(inner, ast.stmt) and inner in outer.body:
            yield outer, inner
        inner = outer


def conjuncts(guard: ast.If) -> list[ast.expr]:
    """What must all be true for a branch to be taken."""
    test = guard.test
    return test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) else [test]


def opened(
    script: Script, guard: ast.If, index: int, together: Sequence[ast.stmt], before: Sequence[str] = ()
) -> Change | None:
    """The `if` with statements of its branch (and new lines `before` all) freed of one of its conditions.

    None where its text has no form that this can be done to with certainty.
    """
    conditions = conjuncts(guard)
    which = conditions[index]
    if any(isinstance(n, ast.NamedExpr | ast.Await | ast.Yield | ast.YieldFrom) for n in ast.walk(guard.test)):
        return None
    if not _is_plain(script, guard):
        return None
    others = [condition for condition in conditions if condition is not which]
    if not together and not others:
        return script.before(guard, *before)
    if guard.orelse:
        return None
    outer, condition = script.indent(guard), _operand(script, which, alone=True)
    match = _AFTER_TEST.match(script.text, script.end(guard.test))
    if match is None:
        return None
    header_end = script.line_at(match.end())
    if guard.body[0].lineno == header_end:
        return _opened_line(script, guard, others, together, before, condition)
    comment = script.text[match.end() : script.line_start(header_end + 1)].strip()
    inner, newline = script.indent(guard.body[0]), script.newline
    if not inner.startswith(outer) or (comment and not comment.startswith("#")):
        return None
    if not all(script.is_alone(statement) and script.indent(statement) == inner for statement in guard.body):
        return None
    deeper = outer if not others else inner  # where what all ranks do stands
    text = outer + comment + newline if comment else ""
    if others:
        text += outer + _header(script, others) + newline
    text += "".join(deeper + line + newline for line in before)
    last, end = header_end, _block_end(script, guard, inner)
    for is_free, group in groupby(guard.body, key=lambda statement: statement in together):
        statements = list(group)
        first = last + 1
        last = end if statements[-1] is guard.body[-1] else statements[-1].end_lineno or first
        if is_free:
            text += script.reindented(first, last, inner, deeper)
        else:
            text += f"{deeper}if {condition}:{newline}"
            text += script.reindented(first, last, inner, deeper + inner[len(outer) :])
    start, stop = script.line_start(guard.lineno), script.line_start(last + 1)
    return Change(start, stop, text)


def _opened_line(
    script: Script,
    guard: ast.If,
    others: list[ast.expr],
    together: Sequence[ast.stmt],
    before: Sequence[str],
    condition: str,
) -> Change | None:
    """The same of `if rank == 0: save()` on one line."""
    if len(guard.body) != 1:
        return None
    outer, newline = script.indent(guard), script.newline
    statement = script.source(guard.body[0])
    deeper = outer + script.unit if others else outer
    text = outer + _header(script, others) + newline if others else ""
    text += "".join(deeper + line + newline for line in before)
    text += deeper + (statement if guard.body[0] in together else f"if {condition}: {statement}")
    return Change(script.line_start(guard.lineno), script.end(guard), text)


def _is_plain(script: Script, guard: ast.If) -> bool:
    """Whether it is an `if` (not an `elif`) at the beginning of a line, with its condition on that line."""
    start = script.start(guard)
    return (
        script.text.startswith("if", start)
        and not script.text[script.line_start(guard.lineno) : start].strip()
        and guard.test.end_lineno == guard.lineno
    )


def _header(script: Script, conditions: list[ast.expr]) -> str:
    alone = len(conditions) == 1
    return f"if {' and '.join(_operand(script, c, alone) for c in conditions)}:"


def _operand(script: Script, node: ast.expr, alone: bool) -> str:
    text = script.source(node)
    return f"({text})" if not alone and isinstance(node, ast.BoolOp | ast.IfExp | ast.Lambda) else text


def _block_end(script: Script, guard: ast.If, inner: str) -> int:
    """The last line of a block: that of its last statement, or of the comments that follow at its indentation."""
    last = end = guard.end_lineno or guard.lineno
    while (line := script.line(end + 1)) and (not line.strip() or line.startswith(inner + "#")):
        end += 1
        if line.strip():
            last = end
    return last


def _is_its_own(statement: ast.stmt, call: ast.Call) -> bool:
    """Whether the statement does nothing but call, keep what the call returns, and wait for it."""
    if not isinstance(statement, ast.Expr | ast.Assign | ast.AnnAssign):
        return False
    value = statement.value
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr in ("result", "wait"):
        value = value.func.value
    return value is call


def _with_what_it_needs(guard: ast.If, child: ast.stmt, call: ast.Call) -> list[ast.stmt] | None:
    """The statements of a branch that go with a call: that which holds it, and assignments that it needs.

    None where something goes with them that one rank alone should do.
    """
    effects = [n for n in ast.walk(child) if isinstance(n, ast.Expr) and not isinstance(n.value, ast.Constant)]
    if any(call not in ast.walk(effect) for effect in effects):
        return None
    together, needed = [child], used(child)
    for statement in reversed(guard.body[: guard.body.index(child)]):
        if not bound(statement) & needed:
            continue
        if not isinstance(statement, ast.Assign | ast.AnnAssign) or not _is_harmless(statement):
            return None
        together.append(statement)
        needed |= used(statement)
    return together


def _is_harmless(statement: ast.stmt) -> bool:
    return all(last_name(n.func) in _HARMLESS for n in ast.walk(statement) if isinstance(n, ast.Call))
