"""Names that a program finds by listing a folder, and whether it looks which of them are whole checkpoints."""

from __future__ import annotations

import ast
import functools
import itertools
import re
from collections.abc import Iterable

from ..nodes import last_name, nodes
from ..values import NONE, Const, Elements, External, Items, Obj, Sym, Tuple, Value, What, members
from .core import Walk
from .handlers import catches_failure

_DEPTH_LIMIT = 12
_MADE_OF = ("join", "f-string", "op", "convert", "attribute")  # what makes a path of others
_PATHS = {"os.path.join", "os.path.abspath", "os.path.realpath", "os.fspath", "pathlib.Path"}
# How programs call what tells a whole checkpoint from one that was not finished, or what they write it under meanwhile.
_MARK = re.compile(
    r"\.metadata\b|^[\w.{}/*-]*(complete|done|success|commit|finish|valid|tmp|temp)[\w.{}/*-]*$", re.IGNORECASE
)
_MOVES = {"rename", "renames", "move", "read_metadata", "replace"}


def may_be_path(value: Value) -> bool:
    """Whether nothing is known of a value that would tell it from a path."""
    return isinstance(value, Sym) or (isinstance(value, Obj) and value.what is What.OPAQUE)


def listed(walk: Walk, value: Value | None) -> bool:
    """Whether a value was made of the entries of a folder."""
    if not walk.lists_folders or value is None:
        return False
    todo: list[object] = [value]
    seen = set[int]()  # values are made of each other in many ways: each is looked at once, by the shortest of them
    for _ in range(_DEPTH_LIMIT + 1):
        made_of: list[object] = []
        for outer in todo:
            for _, v in members(outer) if isinstance(outer, Value) else ():
                identity = v.key if isinstance(v, Sym) else v.id if isinstance(v, Obj) else id(v)
                if identity in seen:
                    continue
                seen.add(identity)
                if isinstance(v, Obj) and walk.fact(v, "listed"):
                    return True
                made_of += _inside(walk, v)
        todo = made_of
    return False


def _inside(walk: Walk, value: Value) -> Iterable[object]:
    """What a value was made of, or holds."""
    if isinstance(value, Sym):
        return walk.parts_of(value.key)
    if isinstance(value, Tuple):
        return value.items
    if not isinstance(value, Obj):
        return ()
    content = walk.content(value)
    if isinstance(content, Elements):
        return content.items
    if isinstance(content, Items):
        return itertools.chain.from_iterable(content.items)
    return (value.parent[0],) if value.parent is not None else ()


def root(walk: Walk, value: Value | None, depth: int = 0) -> str | None:
    """What a path begins with: the text or the identity of the variable; None where that is not known."""
    if isinstance(value, Const):
        return value.value.rpartition("/")[0] or value.value if isinstance(value.value, str) else None
    if isinstance(value, Sym):
        inner = [part for part in walk.parts_of(value.key) if isinstance(part, Value)]
        return root(walk, inner[0], depth + 1) if inner and depth < _DEPTH_LIMIT else str(value.key)
    if isinstance(value, Obj):
        begin = walk.store.get((value.id, "%begin"))
        return root(walk, begin, depth + 1) if begin is not None and depth < _DEPTH_LIMIT else str(value.id)
    return None


def pieces(walk: Walk, value: Value | None, depth: int = 0) -> tuple[str, ...]:
    """What a path is put together from: texts, and the identities of values; nothing where that is not known."""
    known = [v for _, v in members(value) if v != NONE] if value is not None else []
    if len(known) != 1 or depth > _DEPTH_LIMIT:
        return ()
    (only,) = known
    if isinstance(only, Const):
        return (str(only.value),)
    if isinstance(only, Sym):
        made = walk.parts_of(only.key)
        parts = [part for part in made if isinstance(part, Value)] if made[:1] and made[0] in _MADE_OF else []
        found = [pieces(walk, part, depth + 1) for part in parts]
        return tuple(piece for one in found for piece in one) if found and all(found) else (f"<{only.key}>",)
    if isinstance(only, Obj):
        origin = walk.store.get((only.id, "%begin")) or walk.store.get((only.id, "%end"))
        if walk.fact(only, "joined"):
            return (f"<{only.id}>",)
        return pieces(walk, origin, depth + 1) if origin is not None else (f"<{only.id}>",)
    return ()


def kept_in_list(walk: Walk, values: Iterable[Value]) -> None:
    """These are elements of a list: which of them is taken out of it may depend on how many there are."""
    for value in values:
        if may_be_path(value):
            walk.store.set((_identity(value), "%counted"), value)


def is_kept_in_list(walk: Walk, value: object, depth: int = 0) -> bool:
    """Whether a list holds this, or something that it was made of."""
    if not isinstance(value, Sym | Obj) or depth > _DEPTH_LIMIT:
        return False
    if walk.store.get((_identity(value), "%counted")) is not None:
        return True
    made_of = walk.parts_of(value.key) if isinstance(value, Sym) else ()
    return any(is_kept_in_list(walk, part, depth + 1) for part in made_of)


def _identity(value: Value) -> int:
    assert isinstance(value, Sym | Obj)
    return value.key if isinstance(value, Sym) else value.id


def pass_on(walk: Walk, values: list[Value], result: Value) -> Value:
    """What a library makes of paths begins with the first, and what it makes of entries of a folder are such too."""
    if isinstance(result, Obj) and isinstance(result.cls, External) and result.cls.name in _PATHS and values:
        walk.store.set((result.id, "%begin"), values[0])
        if len(values) > 1:
            walk.establish(result, "joined")
    if isinstance(result, Obj) and result.cls == External("os.path.basename") and values:
        walk.store.set((result.id, "%end"), values[0])
    if walk.lists_folders and isinstance(result, Obj) and any(listed(walk, value) for value in values):
        walk.establish(result, "listed")
    return result


def knows_whole(walk: Walk) -> bool:
    """Whether the program may know whole checkpoints from others, or is ready for a load that fails."""
    if walk.seen_whole or any(catches_failure(h) for node in walk.trying for h in node.handlers):
        return True
    return any(_mentions_marks(tree) for tree in walk.files())


def looks_inside(walk: Walk) -> bool:
    """Whether the function that lists a folder here looks for something in what it finds there."""
    function = walk.frame.function
    if function is None or isinstance(function.node, ast.Lambda):
        return False
    return _finds_by_content(function.node) or bool(_names_of(function.node) & _lookers(walk.frame.file.tree))


@functools.lru_cache(maxsize=512)
def _lookers(tree: ast.Module) -> frozenset[str]:
    """The functions of a file that take a path and look there."""
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.args.args]
    return frozenset(
        f.name for f in functions if any(last_name(c.func) in _LOOKS for c in nodes(f) if isinstance(c, ast.Call))
    )


def _names_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    return {node.id for node in nodes(function) if isinstance(node, ast.Name)} - {function.name}


@functools.lru_cache(maxsize=4096)
def _finds_by_content(function: ast.AST) -> bool:
    calls = [node for node in nodes(function) if isinstance(node, ast.Call)]
    lists = [call for call in calls if last_name(call.func) in _LISTS]
    if any(_is_of_one_name(call) for call in lists):
        return True
    roots = {_subject(call) for call in lists[:1]}
    looks = (call for call in calls if last_name(call.func) in _LISTS | _LOOKS and call not in lists[:1])
    return bool(lists) and any(_subject(call) not in roots for call in looks)


def _subject(call: ast.Call) -> str:
    """What a call asks of: its first argument, or what it is a method of."""
    of_path = isinstance(call.func, ast.Attribute) and ast.unparse(call.func.value) not in ("os", "os.path", "glob")
    if of_path and isinstance(call.func, ast.Attribute):
        inner = call.func.value
        return (
            _subject(inner) if isinstance(inner, ast.Call) and last_name(inner.func) == "Path" else ast.unparse(inner)
        )
    return ast.unparse(call.args[0]) if call.args else ""


def _is_of_one_name(call: ast.Call) -> bool:
    """Whether files of one name are looked for, as in `glob(f"{root}/*/READY")`, whose folders have such a file."""
    pattern = call.args[0] if last_name(call.func) in ("glob", "iglob", "rglob") and call.args else None
    parts = pattern.values if isinstance(pattern, ast.JoinedStr) else [pattern]
    text = "".join(str(part.value) if isinstance(part, ast.Constant) else "x" for part in parts)
    *folders, name = text.split("/")
    below = last_name(call.func) == "rglob" or any("*" in folder for folder in folders)
    return below and bool(name) and "*" not in name


_LISTS = {"listdir", "iterdir", "scandir", "glob", "iglob", "rglob"}
_LOOKS = {"exists", "is_file", "isfile", "stat", "getsize", "open"}


def knows_content(walk: Walk) -> bool:
    """Whether the program may know what is in a checkpoint before it loads it, or is ready for a load that fails."""
    if any(catches_failure(h) for node in walk.trying for h in node.handlers):
        return True
    asked = {name for tree in walk.files() for name in _asked_of_metadata(tree)}
    return bool(asked & {"state_dict_metadata", "planner_data"}) or asked == {"read_metadata"}


@functools.lru_cache(maxsize=512)
def _asked_of_metadata(tree: ast.Module) -> frozenset[str]:
    """What a file asks of metadata; `storage_data` tells which files there are, and nothing of keys."""
    return frozenset(n.attr for n in nodes(tree) if isinstance(n, ast.Attribute) and n.attr in _OF_METADATA)


_OF_METADATA = {"read_metadata", "state_dict_metadata", "planner_data", "storage_data"}


@functools.lru_cache(maxsize=512)
def _mentions_marks(tree: ast.Module) -> bool:
    return any(
        (isinstance(node, ast.Constant) and isinstance(node.value, str) and _MARK.search(node.value) is not None)
        or (isinstance(node, ast.Attribute) and node.attr in _MOVES and _is_of_files(node))
        for node in nodes(tree)
    )


def _is_of_files(node: ast.Attribute) -> bool:
    """Whether it moves files: `replace` is a method of strings too."""
    return node.attr != "replace" or (isinstance(node.value, ast.Name) and node.value.id == "os")
