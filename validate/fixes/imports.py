"""Names of torch in a file: how it calls them, and imports of those that it does not have yet."""

from __future__ import annotations

import ast

from .script import Change, Script, bound, first_line

DISTRIBUTED = "torch.distributed"


def spelled(script: Script, module: str, name: str) -> str | None:
    """How a file calls `name` of `module`, None where it has not imported it at its top."""
    for node in script.tree.body:
        if isinstance(node, ast.ImportFrom) and node.module == module and not node.level:
            for alias in node.names:
                if alias.name == name:
                    return alias.asname or alias.name
    return None


def module_spelled(script: Script, module: str) -> str | None:
    """How a file calls a module, None where it has not imported it at its top."""
    outer, _, last = module.rpartition(".")
    for node in script.tree.body:
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name == module:
                    return alias.asname or module
        elif isinstance(node, ast.ImportFrom) and node.module == outer and not node.level:
            for alias in node.names:
                if alias.name == last:
                    return alias.asname or last
    return None


def imported_names(script: Script, module: str, names: tuple[str, ...]) -> tuple[list[str], list[Change]] | None:
    """How to call `names` of `module`, and the changes that import those that are missing.

    None where the file means something else by one of them, or has no imports at its top to put another beside.
    """
    known = {name: spelled(script, module, name) for name in names}
    missing = [name for name in names if known[name] is None]
    if set(missing) & (bound(script.tree) | script.names(script.tree)):
        return None
    changes: list[Change] = []
    if missing:
        change = _import(script, module, missing)
        if change is None:
            return None
        changes.append(change)
    return [known[name] or name for name in names], changes


def rank_of(script: Script) -> str | None:
    """An expression for the rank; None where the file has no name for `torch.distributed`."""
    module = module_spelled(script, DISTRIBUTED)
    if module is None and module_spelled(script, "torch") is not None:
        module = f"{module_spelled(script, 'torch')}.distributed"
    function = spelled(script, DISTRIBUTED, "get_rank")
    return f"{module}.get_rank()" if module is not None else f"{function}()" if function is not None else None


def _import(script: Script, module: str, names: list[str]) -> Change | None:
    """An import statement of its own, where an alphabetical order of the file's last block of imports wants it."""
    block: list[ast.stmt] = []
    for node in script.tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            if block and node is not block[-1] and not _adjoins(script, block[-1], node):
                if any(_is_torch(other) for other in block):
                    break
                block = []
            block.append(node)
        elif block and any(_is_torch(other) for other in block):
            break
        else:
            block = []
    block = [node for node in block if script.is_alone(node)]
    if not block:
        return None
    line = f"from {module} import {', '.join(sorted(names))}"
    later = [n for n in block if isinstance(n, ast.ImportFrom) and not n.level and (n.module or "") > module]
    return script.before(later[0], line) if later else script.after(block[-1], line)


def _adjoins(script: Script, one: ast.stmt, other: ast.stmt) -> bool:
    assert one.end_lineno is not None
    between = script.text[script.line_start(one.end_lineno + 1) : script.line_start(first_line(other))]
    return not between.strip() and between.count("\n") == 0


def _is_torch(node: ast.stmt) -> bool:
    if isinstance(node, ast.ImportFrom):
        return (node.module or "").startswith("torch")
    return isinstance(node, ast.Import) and any(alias.name.startswith("torch") for alias in node.names)
