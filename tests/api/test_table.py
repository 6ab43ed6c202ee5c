"""The table of torch's API against the torch that is installed."""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.util
import inspect
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from pytorch_fsdp2_dcp.validate.api import table
from pytorch_fsdp2_dcp.validate.api.extract import LISTED, TABLE, dumps
from pytorch_fsdp2_dcp.validate.reader import read

INSTALLED = ".".join(torch.__version__.split(".")[:2])
NAMES: dict[str, Any] = json.loads(TABLE.read_text())["names"]
PREFIX = "torch.distributed."
OF_PYTHON = {"_abc_impl", "_is_protocol", "_is_runtime_protocol"}  # ABCMeta and Protocol put them into each class

pytestmark = pytest.mark.skipif(INSTALLED not in table.releases(), reason=f"the table has no torch {INSTALLED}")


def described() -> list[tuple[str, str]]:
    """The names of the installed release, with what the table says of each."""
    texts = ((name, table.find(name, INSTALLED)) for name in NAMES)
    return [(name, present.text) for name, present in texts if present.known and present.text and present.name == name]


@functools.cache
def module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def resolve(name: str) -> Any:
    """The object of a dotted name; the attribute of a class as its definition, not bound."""
    parts = name.split(".")
    homes = (".".join(parts[:end]) for end in range(len(parts), 0, -1))
    home = next(home for home in homes if module(home) is not None)
    found = module(home)
    for part in parts[home.count(".") + 1 :]:
        found = inspect.getattr_static(found, part)
    return found


def functions() -> list[tuple[str, str]]:
    return [(n, t) for n, t in described() if "(" in t and not t.startswith("class(")]


def test_every_module_is_there() -> None:
    listed = [name for name, text in described() if text == "module" and LISTED.fullmatch(name)]
    assert len(listed) > 30
    for name in listed:
        assert importlib.util.find_spec(name) is not None, name


def test_every_signature_is_that_of_the_installed_torch() -> None:
    compared = 0
    different = []
    for name, text in functions():
        how, _, rest = text.partition("(")
        function = resolve(name)
        function = inspect.unwrap(getattr(function, "__func__", function))
        assert how in ("", "staticmethod", "classmethod"), name
        if not inspect.isfunction(function) or not agree(parameters(f"({rest}"), real(function)):
            different.append(name)
        compared += 1
    assert different == ["torch.distributed.tensor._api.DTensor.__init__"]  # never called: it has a `__new__`
    assert compared > 500


def parameters(text: str) -> list[tuple[str, str, str | None]]:
    """Name, kind and default of each parameter, from the table's text."""
    node = ast.parse(f"def f{text}: ...").body[0]
    assert isinstance(node, ast.FunctionDef)
    spec = node.args
    positional = [*spec.posonlyargs, *spec.args]
    defaults = [None] * (len(positional) - len(spec.defaults)) + [ast.unparse(d) for d in spec.defaults]
    kinds = ["POSITIONAL_ONLY"] * len(spec.posonlyargs) + ["POSITIONAL_OR_KEYWORD"] * len(spec.args)
    found = [(a.arg, kind, default) for a, kind, default in zip(positional, kinds, defaults, strict=True)]
    found += [(spec.vararg.arg, "VAR_POSITIONAL", None)] if spec.vararg else []
    for argument, default in zip(spec.kwonlyargs, spec.kw_defaults, strict=True):
        found.append((argument.arg, "KEYWORD_ONLY", ast.unparse(default) if default is not None else None))
    found += [(spec.kwarg.arg, "VAR_KEYWORD", None)] if spec.kwarg else []
    return [(n, k, literal(d)) for n, k, d in found]


def literal(text: str | None) -> str | None:
    """A default that is a literal as Python shows it; of any other the table tells only that there is one."""
    if text is None:
        return None
    try:
        return repr(ast.literal_eval(text))
    except ValueError:
        return "..."


def agree(table: list[tuple[str, str, str | None]], torch: list[tuple[str, str, str | None]]) -> bool:
    """Whether the two tell the same, as far as the table tells of defaults."""
    torch = [
        (n, k, "..." if d is not None and t[2] == "..." else d) for (n, k, d), t in zip(torch, table, strict=False)
    ]
    return table == torch


def real(function: Any) -> list[tuple[str, str, str | None]]:
    """The same of a function that was imported."""
    found = []
    for parameter in inspect.signature(function).parameters.values():
        default = None
        if parameter.default is not parameter.empty:
            try:
                default = repr(ast.literal_eval(repr(parameter.default)))
            except (ValueError, SyntaxError):
                default = "..."
        found.append((parameter.name, parameter.kind.name, default))
    return found


def test_every_class_and_member_is_there() -> None:
    classes = [name for name, text in described() if text.startswith("class(")]
    assert len(classes) > 100
    assert [name for name in classes if not inspect.isclass(resolve(name))] == []


def test_no_public_name_is_missing() -> None:
    """What the listed modules offer and the table does not know would be a false alarm."""
    for name, text in described():
        if text != "module":
            continue
        for public in dir(module(name)):
            if not public.startswith("_"):
                assert not table.find(f"{name}.{public}", INSTALLED).absent, f"{name}.{public}"


@pytest.mark.parametrize(
    ("cls"), ["DeviceMesh", "fsdp.FSDPModule", "fsdp.UnshardHandle", "checkpoint.FileSystemWriter", "tensor.DTensor"]
)
def test_no_member_of_a_class_is_missing(cls: str) -> None:
    for member in dir(resolve(PREFIX + cls)):
        if member in OF_PYTHON:
            continue
        assert not table.find(f"{PREFIX}{cls}.{member}", INSTALLED).absent, member


def test_it_knows_the_age_of_what_it_was_made_for() -> None:
    """Taken from the release notes of torch, not from its sources."""
    assert table.history(PREFIX + "fsdp.FSDPModule.set_gradient_divide_factor") == {
        r: table.number(r) >= (2, 8) for r in table.releases()
    }
    assert not table.argument_history(PREFIX + "fsdp.fully_shard", "ignored_params")["2.6"]
    assert table.argument_history(PREFIX + "fsdp.fully_shard", "ignored_params")["2.7"]
    assert not table.history(PREFIX + "checkpoint.HuggingFaceStorageWriter")["2.7"]


def test_what_changed_is_written_once() -> None:
    """A line tells from which release on it holds."""
    releases = {"2.6": {"a": "()", "b": "value"}, "2.7": {"a": "(x)", "b": "value", "c": "value"}, "2.8": {"a": "(x)"}}
    names = json.loads(dumps(releases, {}))["names"]
    assert names == {
        "a": {"2.6": "()", "2.7": "(x)"},
        "b": {"2.6": "value", "2.8": None},
        "c": {"2.7": "value", "2.8": None},
    }


def test_the_table_is_read_only_for_programs_that_use_the_api(tmp_path: Path) -> None:
    table._table.cache_clear()
    for cached in (table.find, table.history, table.lacked, table.refused, table.argument_history):
        cached.cache_clear()
    (tmp_path / "plain.py").write_text("import torch\nprint(torch.ones(2), torch.nn.Linear(2, 2))\n")
    (tmp_path / "sharded.py").write_text("from torch.distributed.fsdp import fully_shard\nfully_shard(None)\n")
    read(tmp_path / "plain.py")
    assert table._table.cache_info().currsize == 0
    read(tmp_path / "sharded.py")
    assert table._table.cache_info().currsize == 1
