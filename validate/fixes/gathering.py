"""FS601: `torch.save(model.state_dict(), path)` becomes a gathering on all ranks and a write by rank 0."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from ..findings import Finding
from ..reader.nodes import last_name
from .guards import conjuncts, guards_of, opened
from .imports import imported_names, rank_of
from .proposal import Proposal
from .script import Change, Script, bound, used

_HELPERS = "torch.distributed.checkpoint.state_dict"
_OF_OTHERS = re.compile(r"optim|sched|scaler|loader|^opt$", re.IGNORECASE)
_BY_RANK = re.compile(r"rank|main|master|primary|leader|process_index", re.IGNORECASE)
_MESSAGE = "gather the whole state on all ranks, write it on rank 0"


def gathered_for_torch_save(script: Script, finding: Finding) -> Iterator[Proposal]:
    """The state is gathered where all ranks come by: here, before the condition on the rank, or where it was taken."""
    for call in script.calls_at(finding.at):
        statement = script.statement(call)
        if last_name(call.func) != "save" or not call.args or statement.__dict__.get("value") is not call:
            continue
        if any(_BY_RANK.search(name) for argument in call.args[1:] for name in _words(argument)):
            continue  # a file of each rank's own is read by each rank
        for text in _texts(script, call, statement):
            yield Proposal(_MESSAGE, text, safe=False)


def _texts(script: Script, call: ast.Call, statement: ast.stmt) -> Iterator[str]:
    taken = _taken(script, call)
    if taken is None:
        return
    helpers = imported_names(script, _HELPERS, ("StateDictOptions", "get_model_state_dict"))
    if helpers is None:
        return
    (options, getter), imports = helpers
    assert isinstance(taken.func, ast.Attribute)
    model = script.source(taken.func.value)
    gather = f"{getter}({model}, options={options}(full_state_dict=True, cpu_offload=True))"
    here = Change(script.start(taken), script.end(taken), gather)
    guards = [(guard, child) for guard, child in guards_of(script, statement) if _is_on_rank(guard)]
    if script.statement(taken) is not statement:  # it is taken elsewhere, so it is gathered there
        if guards:
            yield script.changed([*imports, here]).text
            yield from _taken_in_guard(script, taken, guards, here, imports)
        elif (wrapped := _guarded(script, statement)) is not None:
            yield script.changed([*imports, here, *wrapped]).text
        return
    name = script.fresh("state", script.scope(statement))
    line = f"{name} = {gather}"
    named = Change(here.start, here.end, name)
    if not guards:
        wrapped = _guarded(script, statement)
        if wrapped is not None:
            start = wrapped[0].start
            first = Change(start, start, script.indent(statement) + line + script.newline + wrapped[0].by)
            yield script.changed([*imports, first, named, *wrapped[1:]]).text
        return
    for guard, _ in guards:
        if bound(ast.Module(guard.body, [])) & used(taken):
            continue
        for index, condition in enumerate(conjuncts(guard)):
            if not _mentions_rank(condition):
                continue
            with_name = script.changed([named])
            same = next(n for n in ast.walk(with_name.tree) if isinstance(n, ast.If) and _place(n) == _place(guard))
            change = opened(with_name, same, index, [], [line])
            if change is not None:
                # Imports stand before all else, so their places are the same in both texts.
                yield with_name.changed([change, *imports]).text


def _taken_in_guard(
    script: Script, taken: ast.Call, guards: list[tuple[ast.If, ast.stmt]], here: Change, imports: list[Change]
) -> Iterator[str]:
    """The state is taken under the condition too: that statement leaves it."""
    statement = script.statement(taken)
    gathered = script.changed([here])
    for guard, _ in guards:
        same = next(n for n in ast.walk(gathered.tree) if isinstance(n, ast.If) and _place(n) == _place(guard))
        moved = [s for s in same.body if _place(s) == _place(statement)]
        if not moved or bound(ast.Module(guard.body, [])) & used(taken):
            continue
        for index, condition in enumerate(conjuncts(guard)):
            if _mentions_rank(condition) and (change := opened(gathered, same, index, moved)) is not None:
                yield gathered.changed([change, *imports]).text


def _taken(script: Script, call: ast.Call) -> ast.Call | None:
    """`model.state_dict()` in what is saved: the object itself, the one such value of a dictionary, or a variable's."""
    saved = call.args[0]
    if isinstance(saved, ast.Name):
        assigned = _assigned(script, saved)
        if assigned is None:
            return None
        saved = assigned
    values = saved.values if isinstance(saved, ast.Dict) else [saved]
    found = [v for v in values if isinstance(v, ast.Call) and last_name(v.func) == "state_dict"]
    if len(found) != 1 or found[0].args or found[0].keywords or not isinstance(found[0].func, ast.Attribute):
        return None
    return None if any(map(_OF_OTHERS.search, _words(found[0].func.value))) else found[0]


def _assigned(script: Script, name: ast.Name) -> ast.expr | None:
    """What a variable of the function holds, where one assignment above sets it."""
    scope = script.scope(name)
    bindings = [
        n for n in ast.walk(scope) if isinstance(n, ast.Name) and n.id == name.id and not isinstance(n.ctx, ast.Load)
    ]
    if len(bindings) != 1 or script.scope(bindings[0]) is not scope or bindings[0].lineno > name.lineno:
        return None
    statement = script.parents[bindings[0]]
    return statement.value if isinstance(statement, ast.Assign) and len(statement.targets) == 1 else None


def _guarded(script: Script, statement: ast.stmt) -> list[Change] | None:
    """The statement under a condition of its own: what goes before it, then its lines, one step further in."""
    rank = rank_of(script)
    if rank is None or not script.is_alone(statement) or script.line_at(script.start(statement)) != statement.lineno:
        return None
    indent, last = script.indent(statement), statement.end_lineno or statement.lineno
    start = script.line_start(statement.lineno)
    changes = [Change(start, start, f"{indent}if {rank} == 0:{script.newline}{script.unit}")]
    for number in range(statement.lineno + 1, last + 1):
        moved = script.reindented(number, number, indent, indent + script.unit)
        if moved != script.line(number):
            place = script.line_start(number)
            changes.append(Change(place, place, script.unit))
    return changes


def _is_on_rank(guard: ast.If) -> bool:
    return any(map(_mentions_rank, conjuncts(guard)))


def _mentions_rank(condition: ast.expr) -> bool:
    return any(map(_BY_RANK.search, _words(condition)))


def _words(node: ast.AST) -> Iterator[str]:
    for part in ast.walk(node):
        if isinstance(part, ast.Name):
            yield part.id
        elif isinstance(part, ast.Attribute):
            yield part.attr


def _place(node: ast.stmt) -> tuple[int, int]:
    return node.lineno, node.col_offset
