"""FS602: `full_state_dict=True` is left out of the options of what DCP saves."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from ..findings import Finding
from ..reader.nodes import last_name
from .proposal import Proposal
from .script import Change, Located, Script

_GETTERS = frozenset({"get_state_dict", "get_model_state_dict", "get_optimizer_state_dict"})
_MESSAGE = "save the sharded state: leave full_state_dict=True out"


def kept_sharded(script: Script, finding: Finding) -> Iterator[Proposal]:
    """The getters that feed the save give sharded state; where that does not show, each getter of the file is tried."""
    full = [call for call in ast.walk(script.tree) if isinstance(call, ast.Call) and _asks_for_full(script, call)]
    for save in script.calls_at(finding.at):
        if last_name(save.func) not in ("save", "async_save", "save_state_dict"):
            continue
        reached, once = _feeding(script, save)
        feeding = [call for call in full if call in reached]
        for getters in (feeding, *([call] for call in full if [call] != feeding)):
            if getters and (text := _without_full(script, getters)) is not None:
                yield Proposal(_MESSAGE, text, safe=once and getters is feeding)


def _feeding(script: Script, save: ast.Call) -> tuple[list[ast.AST], bool]:
    """All that is evaluated for the arguments of a save, through variables of its function.

    And whether what the variables hold goes nowhere else.
    """
    scope = script.scope(save)
    todo: list[ast.AST] = [*save.args, *(k.value for k in save.keywords)]
    seen: set[str] = set()
    found: list[ast.AST] = []
    once = True
    while todo:
        for node in ast.walk(todo.pop()):
            found.append(node)
            if not isinstance(node, ast.Name) or node.id in seen:
                continue
            seen.add(node.id)
            for other in ast.walk(scope):
                if isinstance(other, ast.Assign) and any(node.id in _targets(t) for t in other.targets):
                    todo.append(other.value)
                    if any(isinstance(n, ast.Call) and last_name(n.func) in _GETTERS for n in ast.walk(other.value)):
                        once = once and _reads(scope, node.id) == 1
    return found, once


def _asks_for_full(script: Script, call: ast.Call) -> bool:
    return last_name(call.func) in _GETTERS and _options(script, call) is not None


def _options(script: Script, getter: ast.Call) -> tuple[ast.keyword, ast.Call] | None:
    """The argument `options=` of a getter and the call that makes them, where they ask for full state."""
    argument = next((k for k in getter.keywords if k.arg == "options"), None)
    if argument is None:
        return None
    made = argument.value
    if isinstance(made, ast.Name):
        made = _value_of(script, made) or made
    if not isinstance(made, ast.Call) or last_name(made.func) != "StateDictOptions" or made.args:
        return None
    full = next((k.value for k in made.keywords if k.arg == "full_state_dict"), None)
    return (argument, made) if isinstance(full, ast.Constant) and full.value is True else None


def _value_of(script: Script, name: ast.Name) -> ast.expr | None:
    """What a variable holds that is assigned once, in the same function or the module."""
    for scope in (script.scope(name), script.tree):
        assigned = [
            n for n in ast.walk(scope)
            if isinstance(n, ast.Assign) and script.scope(n) is scope and any(name.id in _targets(t) for t in n.targets)
        ]  # fmt: skip
        if assigned:
            return assigned[0].value if len(assigned) == 1 and isinstance(assigned[0].targets[0], ast.Name) else None
    return None


def _without_full(script: Script, getters: Sequence[ast.Call]) -> str | None:
    """The text where these getters give sharded state; None where a comment would be lost."""
    changes: set[Change] = set()  # getters may share their options
    for getter in getters:
        options = _options(script, getter)
        assert options is not None
        argument, made = options
        arguments: list[ast.expr | ast.keyword] = [*getter.args, *getter.keywords]
        kept = [k for k in made.keywords if k.arg != "full_state_dict"]
        if isinstance(argument.value, ast.Name) and _only_for(script, argument.value, getters):
            if kept:
                change = _without(script, made.keywords, _index(made))
            else:
                change = Change(script.end(made.func) + 1, script.end(made) - 1, "")
        elif not kept:
            change = _without(script, arguments, arguments.index(argument))
        elif made is argument.value:
            change = _without(script, made.keywords, _index(made))
        else:  # the variable serves other calls too, so this one gets options of its own
            text = f"{script.source(made.func)}({', '.join(map(script.source, kept))})"
            change = Change(script.start(argument.value), script.end(argument.value), text)
        if "#" in script.text[change.start : change.end]:
            return None
        changes.add(change)
    return without_unused(script.changed(list(changes)), "StateDictOptions").text


def _index(made: ast.Call) -> int:
    return next(i for i, k in enumerate(made.keywords) if k.arg == "full_state_dict")


def _only_for(script: Script, options: ast.expr, getters: Sequence[ast.Call]) -> bool:
    """Whether all reads of a variable are the options of these getters."""
    assert isinstance(options, ast.Name)
    own = [n for getter in getters for n in ast.walk(getter) if isinstance(n, ast.Name) and n.id == options.id]
    return len(own) == _reads(script.tree, options.id)


def _without(script: Script, items: Sequence[Located], index: int) -> Change:
    """One of several arguments (or imported names) and the comma that it has with its neighbour taken out."""
    if index > 0:
        return Change(script.end(items[index - 1]), script.end(items[index]), "")
    return Change(script.start(items[0]), script.start(items[1]), "")


def without_unused(script: Script, name: str) -> Script:
    """The script without the import of a name that it no longer mentions."""
    if name in script.names(script.tree) or re_exported(script, name):
        return script
    for node in script.tree.body:
        if isinstance(node, ast.ImportFrom) and len(node.names) > 1:
            for index, alias in enumerate(node.names):
                if alias.name == name and alias.asname is None:
                    change = _without(script, node.names, index)
                    return script if "#" in script.text[change.start : change.end] else script.changed([change])
    return script


def re_exported(script: Script, name: str) -> bool:
    """Whether a string of the file names it, as `__all__` does."""
    return any(isinstance(n, ast.Constant) and n.value == name for n in ast.walk(script.tree))


def _targets(target: ast.expr) -> set[str]:
    return {n.id for n in ast.walk(target) if isinstance(n, ast.Name)}


def _reads(scope: ast.AST, name: str) -> int:
    return sum(isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Load) for n in ast.walk(scope))
