"""What a module of torch defines, read from its source: no name is imported, nothing is run."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

VALUE = "value"  # something that the table says no more of than that it is there
# They add no name that a program would ask for.
_PLAIN_BASES = {"ABC", "Protocol", "Generic", "object", "OpaqueBase", "CustomClassBase"}


@dataclass
class Scope:
    """The names that a module's body leaves behind: definitions as nodes, imports as dotted names."""

    names: dict[str, ast.AST | str] = field(default_factory=dict)
    stars: list[str] = field(default_factory=list)
    exported: list[str] | None = None  # `__all__`


class Sources:
    """The modules of one release, by dotted name; `packages` are those that have submodules."""

    def __init__(self, texts: Mapping[str, str], packages: Iterable[str]) -> None:
        self._texts = texts
        self._packages = frozenset(packages)
        self._scopes: dict[str, Scope] = {}

    def __contains__(self, module: str) -> bool:
        return module in self._texts

    def modules(self) -> list[str]:
        """The names of the modules."""
        return list(self._texts)

    def names(self, module: str) -> list[str]:
        """Every name of a module, those that a `*` brings in included."""
        scope = self._scope(module)
        brought = (n for star in scope.stars if star in self for n in self._public(star))
        return list(dict.fromkeys((*scope.names, *brought)))

    def is_foreign(self, module: str, name: str) -> bool:
        """Whether a name only got into a module because its code needs something of another library."""
        found = self._scope(module).names.get(name)
        return isinstance(found, str) and not found.startswith("torch.")

    def grows(self, module: str) -> bool:
        """Whether a module puts others below itself when it is imported, by names that it computes."""
        return any(
            isinstance(target, ast.Subscript)
            and ast.unparse(target.value) == "sys.modules"
            and not isinstance(target.slice, ast.Constant)
            for node in ast.walk(ast.parse(self._texts[module]))
            if isinstance(node, ast.Assign)
            for target in node.targets
        )

    def find(self, module: str, name: str) -> tuple[str, ast.AST | None]:
        """The dotted name under which `module.name` is defined, and its definition, None where it is no source's."""
        seen: set[tuple[str, str]] = set()
        while module in self and (module, name) not in seen:
            seen.add((module, name))
            scope = self._scope(module)
            found = scope.names.get(name)
            if found is None:
                star = next((s for s in scope.stars if s in self and name in self._public(s)), None)
                if star is None:
                    return (f"{module}.{name}", None)
                module = star
            elif isinstance(found, str):
                if found in self:
                    return (found, None)
                module, _, name = found.rpartition(".")
            elif isinstance(found, ast.Assign | ast.AnnAssign) and isinstance(found.value, ast.Name):
                if found.value.id not in scope.names:
                    return (f"{module}.{name}", found)
                name = found.value.id
            else:
                return (f"{module}.{name}", found)
        return (f"{module}.{name}", None)

    def describe(self, name: str, node: ast.AST | None, module: str) -> Iterator[tuple[str, str]]:
        """The lines of the table for a definition: itself, and the members of a class."""
        if isinstance(node, ast.ClassDef):
            bases = [self._base(module, base) for base in node.bases]
            bases += [ast.unparse(k.value) for k in node.keywords if "ABCMeta" not in ast.unparse(k.value)]
            yield name, f"class({', '.join(base for base in bases if base)})"
            yield from ((f"{name}.{member}", text) for member, text in self._members(node, module).items())
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield name, signature(node.args)
        else:
            yield name, VALUE

    def bases(self, module: str, node: ast.ClassDef) -> list[tuple[str, ast.AST | None]]:
        """The definitions of a class's bases that are in these sources."""
        found = [self.find(module, b.id) for b in node.bases if isinstance(b, ast.Name)]
        return [(name, base) for name, base in found if base is not None]

    def _base(self, module: str, base: ast.expr) -> str:
        if isinstance(base, ast.Subscript):
            base = base.value
        text = ast.unparse(base)
        if text.rpartition(".")[2] in _PLAIN_BASES:
            return ""
        if not isinstance(base, ast.Name) or base.id not in self._scope(module).names:
            return text
        return self.find(module, base.id)[0]

    def _members(self, node: ast.ClassDef, module: str) -> dict[str, str]:
        found: dict[str, str] = {}
        for statement in _flat(node.body):
            if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
                decorators = [ast.unparse(d) for d in statement.decorator_list]
                if not _is_overload(decorators) and not any(".setter" in d for d in decorators):
                    found[statement.name] = _method(statement, decorators)
                for name in _stored_in(statement):
                    found.setdefault(name, VALUE)
            elif isinstance(statement, ast.Assign):
                for target in statement.targets:
                    if isinstance(target, ast.Name):
                        found[target.id] = VALUE
            elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                found[statement.target.id] = VALUE
            elif isinstance(statement, ast.ClassDef):
                found[statement.name] = VALUE
        if "__init__" not in found and (made := self._dataclass_init(node, module)) is not None:
            found["__init__"] = made
        return {name: text for name, text in found.items() if not _is_dunder(name)}

    def _dataclass_init(self, node: ast.ClassDef, module: str) -> str | None:
        fields = self._fields(node, module)
        if fields is None:
            return None
        return (
            f"({', '.join(['self', *(f'{name}={default}' if default else name for name, default in fields.items())])})"
        )

    def _fields(self, node: ast.ClassDef, module: str) -> dict[str, str] | None:
        """The parameters of a dataclass's constructor with their defaults; None for any other class."""
        if not any(ast.unparse(d).startswith(("dataclass", "dataclasses.dataclass")) for d in node.decorator_list):
            return None
        found: dict[str, str] = {}
        for name, base in self.bases(module, node):
            if isinstance(base, ast.ClassDef):
                found.update(self._fields(base, name.rpartition(".")[0]) or {})
        for statement in node.body:
            if not (isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)):
                continue
            if "ClassVar" in ast.unparse(statement.annotation):
                continue
            default = _field_default(statement.value)
            if default is not None:
                found[statement.target.id] = default
        return found

    def _public(self, module: str) -> list[str]:
        scope = self._scope(module)
        if scope.exported is not None:
            return scope.exported
        return [name for name in self.names(module) if not name.startswith("_")]

    def _scope(self, module: str) -> Scope:
        if module not in self._scopes:
            scope = self._scopes[module] = Scope()
            package = module if module in self._packages else module.rpartition(".")[0]
            for statement in _flat(ast.parse(self._texts[module]).body):
                _define(scope, statement, package)
        return self._scopes[module]


def signature(arguments: ast.arguments) -> str:
    """The parameters of a function with their defaults, without annotations."""
    bare = ast.arguments(
        posonlyargs=[ast.arg(a.arg) for a in arguments.posonlyargs],
        args=[ast.arg(a.arg) for a in arguments.args],
        vararg=ast.arg(arguments.vararg.arg) if arguments.vararg else None,
        kwonlyargs=[ast.arg(a.arg) for a in arguments.kwonlyargs],
        kw_defaults=arguments.kw_defaults,
        kwarg=ast.arg(arguments.kwarg.arg) if arguments.kwarg else None,
        defaults=arguments.defaults,
    )
    return f"({ast.unparse(bare)})"


def _method(node: ast.FunctionDef | ast.AsyncFunctionDef, decorators: list[str]) -> str:
    if any(d.rpartition(".")[2] in ("property", "cached_property") for d in decorators):
        return VALUE
    how = next((d for d in decorators if d in ("staticmethod", "classmethod")), "")
    return how + signature(node.args)


def _stored_in(method: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    """The attributes that a method sets of its instance."""
    first = method.args.args[0].arg if method.args.args else ""
    for node in ast.walk(method):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            owner = node.value
            if isinstance(owner, ast.Name) and owner.id == first:
                yield node.attr


def _field_default(value: ast.expr | None) -> str | None:
    """The default of a dataclass's field as text: empty where it has none, None where it is no parameter."""
    if value is None:
        return ""
    if isinstance(value, ast.Call) and ast.unparse(value.func).rpartition(".")[2] == "field":
        options = {k.arg: k.value for k in value.keywords}
        if isinstance(flag := options.get("init"), ast.Constant) and flag.value is False:
            return None
        if "default" in options:
            return ast.unparse(options["default"])
        return f"{ast.unparse(options['default_factory'])}()" if "default_factory" in options else ""
    return ast.unparse(value)


def _flat(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements that run where torch was built with its distributed package, on Linux."""
    for statement in body:
        if isinstance(statement, ast.If):
            test = ast.unparse(statement.test)
            if "TYPE_CHECKING" in test or "__name__" in test:
                yield from _flat(statement.orelse)
            elif "is_available()" in test or "_c10d_init" in test:
                yield from _flat(statement.orelse if test.startswith("not ") else statement.body)
            else:
                yield from _flat(statement.orelse)
                yield from _flat(statement.body)
        elif isinstance(statement, ast.Try):
            for handler in statement.handlers:
                yield from _flat(handler.body)
            yield from _flat(statement.body)
        elif isinstance(statement, ast.With):
            yield from _flat(statement.body)
        else:
            yield statement


def _define(scope: Scope, statement: ast.stmt, package: str) -> None:
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
        if not _is_overload([ast.unparse(d) for d in statement.decorator_list]):
            scope.names[statement.name] = statement
    elif isinstance(statement, ast.ClassDef):
        scope.names[statement.name] = statement
    elif isinstance(statement, ast.Assign):
        for target in statement.targets:
            for name in ast.walk(target):
                if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store):
                    scope.names[name.id] = statement
                    if name.id == "__all__":
                        scope.exported = _strings(statement.value)
    elif isinstance(statement, ast.AugAssign) and ast.unparse(statement.target) == "__all__":
        scope.exported = [*(scope.exported or []), *_strings(statement.value)]
    elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name) and statement.value:
        scope.names[statement.target.id] = statement
    elif isinstance(statement, ast.Import):
        for alias in statement.names:
            scope.names[alias.asname or alias.name.partition(".")[0]] = (
                alias.name if alias.asname else alias.name.partition(".")[0]
            )
    elif isinstance(statement, ast.ImportFrom):
        outer = statement.module or ""
        if statement.level:
            above = package.split(".")[: len(package.split(".")) - statement.level + 1]
            outer = ".".join([*above, *([statement.module] if statement.module else [])])
        for alias in statement.names:
            if alias.name == "*":
                scope.stars.append(outer)
            else:
                scope.names[alias.asname or alias.name] = f"{outer}.{alias.name}"


def _strings(value: ast.expr) -> list[str]:
    return [n.value for n in ast.walk(value) if isinstance(n, ast.Constant) and isinstance(n.value, str)]


def _is_overload(decorators: list[str]) -> bool:
    return any(d.rpartition(".")[2] == "overload" for d in decorators)


def _is_dunder(name: str) -> bool:
    return name.startswith("__") and name not in ("__init__", "__getattr__")
