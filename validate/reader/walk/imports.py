"""Import statements: modules of the project are walked once each, everything else is a library's."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

from ..names import canonical
from ..source import SourceFile, real
from ..values import Const, External, Namespace, Value
from . import uses
from .core import Frame, Walk, statement


@statement(ast.Import)
def _import(walk: Walk, node: ast.Import) -> bool:
    for alias in node.names:
        uses.named(walk, alias.name, alias, imported=True)
        top = alias.name.partition(".")[0]
        if alias.asname is not None:
            value = module(walk, alias.name, node)
            bind(walk, alias.asname, value)
        else:
            value = module(walk, top, node)
            if alias.name != top:
                module(walk, alias.name, node)
            bind(walk, top, value)
    return True


@statement(ast.ImportFrom)
def _import_from(walk: Walk, node: ast.ImportFrom) -> bool:
    if node.module == "__future__":
        return True
    if node.level:
        path = walk.project.relative(walk.frame.file.path, node.level, node.module)
        name = "." * node.level + (node.module or "")
        outer: Value = namespace(walk, path, name, node) if path is not None else External(name)
    else:
        outer = module(walk, node.module or "", node)
    if isinstance(outer, External) and not node.level:
        uses.imported_from(walk, node)
    is_lacked = isinstance(outer, External) and uses.named(walk, outer.name, node, imported=True)
    for alias in node.names:
        if alias.name == "*":
            if isinstance(outer, Namespace):
                for name in walk.store.names(outer.scope):
                    if not name.startswith("_") and (value := walk.get((outer.scope, name))) is not None:
                        bind(walk, name, value)
            else:
                walk.note(
                    node, f"`from {node.module} import *` of a library brings names that the reader does not know"
                )
            continue
        if isinstance(outer, External) and not is_lacked:
            uses.named(walk, f"{outer.name}.{alias.name}", alias, imported=True)
        value = from_namespace(walk, outer, alias.name, node) if isinstance(outer, Namespace) else External(
            canonical(f"{getattr(outer, 'name', '')}.{alias.name}")
        )  # fmt: skip
        bind(walk, alias.asname or alias.name, value)
    return True


def bind(walk: Walk, name: str, value: Value) -> None:
    """Give a variable a value."""
    walk.store.set((walk.frame.outer_names.get(name, walk.frame.scope), name), value)


def module(walk: Walk, name: str, node: ast.AST) -> Value:
    """The module of a dotted name."""
    top = name.partition(".")[0]
    if top not in ("torch", "torchdata", "numpy", "transformers") and top not in sys.stdlib_module_names:
        path = walk.project.find(name)
        if path is not None:
            return namespace(walk, path, name, node)
    return External(name)


def namespace(walk: Walk, path: Path, name: str, node: ast.AST) -> Value:
    """A module of the project, walked on its first import."""
    key = real(path)
    file = walk.project.load(path)
    if file is None:
        walk.note(node, f"`{name}` could not be read")
        return External(name)
    if key not in walk.namespaces:
        scope = walk.new_scope(None)
        walk.namespaces[key] = scope
        walk_module(walk, file, scope, name)
    return Namespace(walk.namespaces[key], name, file)


def walk_module(walk: Walk, file: SourceFile, scope: int, name: str) -> bool:
    """Walk the body of a module."""
    walk.store.set((scope, "__name__"), Const(name))
    walk.store.set((scope, "__file__"), Const(file.name))
    walk.frames.append(Frame(file, scope, walk.store.mark()))
    try:
        return walk.execute(file.tree.body)
    finally:
        walk.frames.pop()


def from_namespace(walk: Walk, value: Namespace, name: str, node: ast.AST) -> Value:
    """A name of a module of the project: a variable, or a submodule."""
    found = walk.get((value.scope, name))
    if found is not None:
        return found
    path = walk.project.submodule(value.file.path, name)
    if path is not None:
        return namespace(walk, path, f"{value.name}.{name}", node)
    return External(f"{value.name}.{name}")
