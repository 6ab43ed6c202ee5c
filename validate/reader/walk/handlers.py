"""Which exceptions the program catches around a call, and whether it goes on after them."""

from __future__ import annotations

import ast

from ...api import table
from ..nodes import is_exit, last_name, nodes
from .core import Walk

# A failure of DCP is a CheckpointException, which derives from BaseException.
_OF_DCP = {"BaseException", "CheckpointException"}
# What a program catches when it is a failed save or load that it has in mind.
_MEANT = {"Exception", "RuntimeError", "OSError", "IOError", "FileNotFoundError", "KeyError", "ValueError", "EOFError"}
_MEANT_BY_ALL = {"Exception", "RuntimeError"}  # where other calls may be what fails
_ENDS = {"exit", "_exit", "abort", "fail", "fatal", "die"}


def catches_failure(handler: ast.ExceptHandler) -> bool:
    """Whether a handler takes a failure of DCP."""
    return handler.type is None or bool(_names(handler.type) & _OF_DCP)


def caught(walk: Walk, node: ast.AST) -> str | None:
    """The exceptions that the `try` around this call goes on after, where a failure of DCP is not among them."""
    inside = (t for t in reversed(walk.trying) if any(part is node for s in t.body for part in ast.walk(s)))
    innermost = next(inside, None)
    if innermost is None or any(catches_failure(handler) for handler in innermost.handlers):
        return None
    if any(isinstance(part, ast.For | ast.While) and node in nodes(part) for s in innermost.body for part in nodes(s)):
        return None  # it is about all that the loop does
    meant = _MEANT if _is_alone(innermost, node) else _MEANT_BY_ALL
    goes_on = [h for h in innermost.handlers if h.type is not None and _names(h.type) & meant and not _ends(h)]
    return ", ".join(ast.unparse(h.type) for h in goes_on if h.type is not None) or None


def is_failure(statement: ast.stmt) -> bool:
    """Whether a statement raises an error, or ends the program as one does."""
    if isinstance(statement, ast.Raise):
        exits = isinstance(statement.exc, ast.Call) and last_name(statement.exc.func) == "SystemExit"
        return not exits or tells_failure(statement.exc)
    return isinstance(statement, ast.Expr) and is_exit(statement) and tells_failure(statement.value)


def tells_failure(call: ast.AST | None) -> bool:
    """Whether a call that ends the program is given a status that is not 0, or a message: the launcher ends the job."""
    status = call.args[0] if isinstance(call, ast.Call) and call.args else None
    if isinstance(status, ast.Constant):
        return status.value not in (None, 0)
    return isinstance(status, ast.JoinedStr | ast.UnaryOp) or (
        isinstance(status, ast.BinOp) and isinstance(status.left, ast.Constant | ast.JoinedStr)
    )


def for_imports_that_succeed(node: ast.Try) -> bool:
    """Whether the handlers are for the failure of imports that every torch from the oldest supported has.

    The body imports of torch alone, and else says so at most (`HAS_FSDP2 = True`).
    """
    imports = [s for s in node.body if isinstance(s, ast.Import | ast.ImportFrom)]
    others = [s for s in node.body if s not in imports]
    said = all(
        (isinstance(s, ast.Assign) and isinstance(s.value, ast.Constant))
        or (isinstance(s, ast.Expr) and isinstance(s.value, ast.Call) and last_name(s.value.func) == "print")
        for s in others
    )
    taken = all(h.type is None or _names(h.type) & {"ImportError", "Exception"} for h in node.handlers)
    return bool(imports) and said and taken and all(map(_succeeds, imports))


def _succeeds(node: ast.Import | ast.ImportFrom) -> bool:
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    else:
        names = [f"{node.module}.{alias.name}" for alias in node.names] if node.level == 0 else [""]
    return all(name.split(".")[0] == "torch" and not table.lacked(name) for name in names)


def _names(node: ast.expr) -> set[str]:
    return set(map(last_name, nodes(node)))


def _ends(handler: ast.ExceptHandler) -> bool:
    """Whether the program does not go on after this handler."""
    inside = [part for statement in handler.body for part in ast.walk(statement)]
    calls = [part.func for part in inside if isinstance(part, ast.Call)]
    names = set(map(last_name, calls))
    kept = (part.value for part in inside if isinstance(part, ast.Assign))
    is_kept = any(isinstance(value, ast.Name) and value.id == handler.name for value in kept)  # to be raised later
    return bool(names & _ENDS) or is_kept or any(isinstance(part, ast.Raise) for part in inside)


def _is_alone(statement: ast.Try, node: ast.AST) -> bool:
    """Whether the body calls nothing but this, and what says so."""
    calls = {part for s in statement.body for part in nodes(s) if isinstance(part, ast.Call)}
    own = set(nodes(node))
    return all(call in own or last_name(call.func) in _SAYS for call in calls)


_SAYS = {"print", "info", "debug", "warning", "log"}
