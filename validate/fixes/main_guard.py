"""FS804: what a module does when it is run goes under `if __name__ == "__main__":`."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..findings import Finding
from ..reader.nodes import last_name
from .proposal import Proposal
from .script import Change, Script

_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_IMPORTS = (ast.Import, ast.ImportFrom)
# What a process that only imports the module must not do either, so that it may not stay outside.
_OF_THE_JOB = {"init_process_group", "init_device_mesh", "fully_shard", "spawn", "set_device", "cuda"}


def started_under_a_guard(script: Script, _finding: Finding) -> Iterator[Proposal]:
    """All that follows the last function or class, from the first statement that does something."""
    body = script.tree.body
    defined = max((i for i, s in enumerate(body) if isinstance(s, _DEFINITIONS)), default=-1)
    first = next((i for i, s in enumerate(body) if i > defined and _does(s)), None)
    if first is None or not script.is_alone(body[first]) or any(map(_is_of_the_job, body[:first])):
        return
    line = _with_comments(script, body[first].lineno)
    start = script.line_start(line)
    last = script.line_at(len(script.text) - 1)
    guarded = script.reindented(line, last, "", script.unit)
    text = script.changed(
        [Change(start, len(script.text), f'if __name__ == "__main__":{script.newline}{guarded}')]
    ).text
    yield Proposal('start the program under `if __name__ == "__main__":`', text, safe=False)


def _does(statement: ast.stmt) -> bool:
    """Whether a statement at the top of a module does something, which a definition, a constant and a text do not."""
    if isinstance(statement, (*_DEFINITIONS, *_IMPORTS)):
        return False
    if isinstance(statement, ast.Assign | ast.AnnAssign | ast.Expr):
        return any(isinstance(n, ast.Call) for n in ast.walk(statement))
    return True


def _is_of_the_job(statement: ast.stmt) -> bool:
    if isinstance(statement, _DEFINITIONS):
        return False
    return any(isinstance(n, ast.Call) and last_name(n.func) in _OF_THE_JOB for n in ast.walk(statement))


def _with_comments(script: Script, line: int) -> int:
    """The first of the lines of comments that stand right above a line."""
    while line > 1 and script.line(line - 1).startswith("#"):
        line -= 1
    return line
